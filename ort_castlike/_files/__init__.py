"""Models in files and in memory: read, loaded into onnx_ir, streamed, and saved whole or not at all."""
