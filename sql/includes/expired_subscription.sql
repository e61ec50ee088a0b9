-- Only subscriptions of the event broker whose interval has passed; those without an interval never expire.
AND pgmb.add_interval_imm(subscriptions.last_active_at, subscriptions.expiry_interval) < now()
