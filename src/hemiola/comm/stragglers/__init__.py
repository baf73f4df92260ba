"""All-reduces that begin without the ranks that are late."""
