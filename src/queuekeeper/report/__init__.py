"""What every report shares: figures in words, charts, the frame of the page, files; the content is each one's own."""
