"""Models tried out and judged: random feeds, an independent evaluation node by node, and probes of type pairs."""
