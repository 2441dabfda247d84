// Usage: node node.mjs FOLDER. Runs every case of FOLDER/cases.json on onnxruntime-web (WebAssembly) and
// onnxruntime-node (the native library), and packs and unpacks 2-bit arrays.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

import * as native from "onnxruntime-node";
import * as wasm from "onnxruntime-web";

import { runCase } from "./cases.mjs";
import { pack2, unpackInt2, unpackUint2 } from "./int2.mjs";

assert.deepEqual(pack2(Int8Array.of(1, -2, -1, 0, -2)), Uint8Array.of(0b00_11_10_01, 0b10));
assert.deepEqual(unpackInt2(Uint8Array.of(0b00_11_10_01, 0b10), 5), Int8Array.of(1, -2, -1, 0, -2));
assert.deepEqual(unpackUint2(Uint8Array.of(0b00_11_10_01, 0b10), 5), Uint8Array.of(1, 2, 3, 0, 2));

const folder = process.argv[2];
const cases = JSON.parse(await readFile(join(folder, "cases.json"), "utf8"));
wasm.env.wasm.numThreads = 1;
for (const [name, ort] of Object.entries({ "onnxruntime-web": wasm, "onnxruntime-node": native })) {
  const differences = [];
  for (const entry of cases) {
    const model = new Uint8Array(await readFile(join(folder, `${entry.name}.onnx`)));
    differences.push(...(await runCase(ort, model, entry)));
  }
  assert.deepEqual(differences, [], name);
  console.log(`${name} under node ${process.version}: ${cases.length} models right`);
}
