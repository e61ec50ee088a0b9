-- Columns of a quality run, between its id and its end.
mode,
suites,
profile_ids,
verdict,
numbers,
started_at,
