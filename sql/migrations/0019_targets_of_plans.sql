-- What a plan says of a client may hang on whether the target is a cluster; plans of earlier releases do not say.
ALTER TABLE queuekeeper.plans ADD COLUMN target_clustered boolean;
