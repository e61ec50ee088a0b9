-- A migration to which nobody agreed when asked is stopped, as runs of every other kind are.
ALTER TABLE queuekeeper.plans
DROP CONSTRAINT plans_state_check,
ADD CONSTRAINT plans_state_check CHECK (
    state IN ('planned', 'refused', 'stopped', 'approved', 'copying', 'copied', 'verified', 'failed')
);
