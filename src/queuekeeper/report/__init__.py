"""What every report shares: figures in words, charts, the frame of the page, files."""
