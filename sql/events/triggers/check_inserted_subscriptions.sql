-- Judge the conditions of new subscriptions.
-- needs: subscriptions, check_subscriptions
CREATE TRIGGER check_inserted_subscriptions AFTER INSERT ON pgmb.subscriptions
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT
EXECUTE FUNCTION pgmb.check_subscriptions();
