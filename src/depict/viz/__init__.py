"""Everything that is drawn: overlays, palettes, figure style."""
