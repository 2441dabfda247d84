"""Model-local functions that touch an emulated type: found, brought to one opset, and inlined."""
