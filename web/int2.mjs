// INT2 and UINT2 arrays between one element per byte, as a rewritten model has them, and ONNX's packed form:
// four elements per byte, the first in the lowest bits.

export function pack2(codes) {
  const packed = new Uint8Array(Math.ceil(codes.length / 4));
  codes.forEach((code, index) => {
    packed[index >> 2] |= (code & 3) << (2 * (index & 3));
  });
  return packed;
}

export function unpackUint2(packed, length) {
  return Uint8Array.from({ length }, (_, index) => (packed[index >> 2] >> (2 * (index & 3))) & 3);
}

export function unpackInt2(packed, length) {
  return Int8Array.from({ length }, (_, index) => (packed[index >> 2] << (30 - 2 * (index & 3))) >> 30);
}
