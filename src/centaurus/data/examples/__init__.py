"""Examples made of clips: each task draws, augments and labels them as a function of epoch and index."""
