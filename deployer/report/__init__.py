"""Reports from recorded results only: one HTML file that needs nothing else, with Vega-Lite inside."""
