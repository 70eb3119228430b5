"""Where budgets and settings come from: presets, files, texts."""
