"""How a reader asks a store for data, and what each of several readers may take. Pure: time and chance are arguments."""
