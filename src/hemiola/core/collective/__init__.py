"""How a collective is carried out, as a value that proves itself."""
