-- Judge conditions and params that were changed; a heartbeat changes neither.
-- needs: subscriptions, check_subscriptions
CREATE TRIGGER check_updated_subscriptions AFTER UPDATE ON pgmb.subscriptions
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT
EXECUTE FUNCTION pgmb.check_subscriptions();
