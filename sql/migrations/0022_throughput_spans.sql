-- A sample of a step's speed may stand for several, so that a long step needs no more rows than a short one.
ALTER TABLE queuekeeper.throughput ADD COLUMN worked_ms bigint;
ALTER TABLE queuekeeper.throughput ADD COLUMN messages bigint;
