-- A message that a store has set aside may come back to its session, once; the row says when, by whom and as which.
ALTER TABLE queuekeeper.session_quarantine
ADD COLUMN status text NOT NULL DEFAULT 'open',
ADD COLUMN assigned_serial_number bigint,
ADD COLUMN assigned_packet_id int,
ADD COLUMN replayed_at timestamptz,
ADD COLUMN replayed_by text,
ADD CONSTRAINT session_quarantine_status_check CHECK (status IN ('open', 'replayed')),
ADD CONSTRAINT session_quarantine_replayed_check CHECK ((status = 'replayed') = (replayed_at IS NOT NULL));
