"""What a live cluster looks like in a terminal: columns, times and cells, of plain values."""
