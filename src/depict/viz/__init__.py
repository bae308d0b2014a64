"""Everything that is drawn: overlays, figure style."""
