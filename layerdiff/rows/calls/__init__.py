"""The calls inside one module call, and the evidence for one of them."""
