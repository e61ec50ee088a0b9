-- Return an id for a subscription.
CREATE FUNCTION pgmb.create_subscription_id()
RETURNS pgmb.subscription_id
LANGUAGE sql
AS $$
    SELECT ('su' || substr(pgmb.create_event_id_default(), 3))::pgmb.subscription_id
$$;
