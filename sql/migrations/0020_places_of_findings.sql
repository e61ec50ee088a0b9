-- Who answers for a failure at one place does not answer for it at another; known issues of before count everywhere.
ALTER TABLE queuekeeper.known_issues ADD COLUMN place text;
ALTER TABLE queuekeeper.quality_results ADD COLUMN place text NOT NULL DEFAULT '';
