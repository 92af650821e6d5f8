"""SGLang's wires: chat with prompt ids, and generate."""
