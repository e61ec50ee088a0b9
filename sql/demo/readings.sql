-- A table of readings by day: five partitions of the past, today among them, with 1,000 rows each; no partition ahead.
CREATE TABLE public.readings (
    at timestamptz NOT NULL,
    sensor integer NOT NULL,
    celsius double precision NOT NULL
) PARTITION BY RANGE (at);

DO $$
DECLARE
    today timestamptz := date_trunc('day', now(), 'UTC');
BEGIN
    FOR age IN 0..4 LOOP
        EXECUTE format(
            'CREATE TABLE public.%I PARTITION OF public.readings FOR VALUES FROM (%L) TO (%L)',
            'readings_' || to_char((today - age * interval '24 hours') AT TIME ZONE 'UTC', 'YYYYMMDD'),
            today - age * interval '24 hours',
            today - (age - 1) * interval '24 hours'
        );
    END LOOP;
END
$$;

INSERT INTO public.readings (at, sensor, celsius)
SELECT
    date_trunc('day', now(), 'UTC') - age * interval '24 hours' + number * interval '86 seconds' AS at,
    number % 20 AS sensor,
    20 + sin(number / 100.0) AS celsius
FROM generate_series(0, 4) AS age, generate_series(0, 999) AS number;
