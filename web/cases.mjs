// Runs one case of cases.json on any of the onnxruntime packages for JavaScript, and compares bit for bit.

// Where there is no Float16Array, the packages take and give the bits of a float16 in a Uint16Array.
const ARRAYS = {
  float32: Float32Array,
  float16: globalThis.Float16Array ?? Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
  int32: Int32Array,
  int64: BigInt64Array,
};

function bytes(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function difference(tensor, expected) {
  const found = new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength);
  const wanted = bytes(expected.data);
  if (tensor.type !== expected.type) return `type ${tensor.type}, not ${expected.type}`;
  if (tensor.dims.join() !== expected.dims.join()) return `shape [${tensor.dims}], not [${expected.dims}]`;
  const at = wanted.findIndex((byte, index) => byte !== found[index]);
  if (at < 0 && wanted.length === found.length) return null;
  const index = Math.floor(at / tensor.data.BYTES_PER_ELEMENT);
  const right = new ARRAYS[expected.type](wanted.buffer);
  return `element ${index} is ${tensor.data[index]}, not ${right[index]}`;
}

// Gives the differences found, as text; none is what is hoped for.
export async function runCase(ort, model, { name, inputs, outputs }) {
  // Without this, activations beside 2-bit weights are rounded to 8 bits.
  const extra = { session: { qdq_matmulnbits_accuracy_level: "0" } };
  const session = await ort.InferenceSession.create(model, { executionProviders: ["cpu"], extra });
  const feeds = {};
  for (const [input, { type, dims, data }] of Object.entries(inputs)) {
    feeds[input] = new ort.Tensor(type, new ARRAYS[type](bytes(data).buffer), dims);
  }
  const results = await session.run(feeds);
  return Object.entries(outputs)
    .map(([output, expected]) => [output, difference(results[output], expected)])
    .filter(([, text]) => text !== null)
    .map(([output, text]) => `${name}: ${output}: ${text}`);
}
