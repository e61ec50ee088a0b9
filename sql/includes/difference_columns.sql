-- Columns of a difference, between the client and what was found.
serial_number,
kind,
expected,
