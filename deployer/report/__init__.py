"""Reports from recorded results only: self-contained HTML with plain SVG."""
