---------------------------- MODULE TraceCompacted ----------------------------
(* What producers, consumers and the collector of a compacted queue have written down, against its model. A call of a
   script for several entries is several lines. docs/proofs.md says what is mapped. *)
EXTENDS Compacted, Replay

VARIABLES
    at,       \* key -> instant of its value
    latest,   \* the latest of all these instants
    deleted,  \* numbers of tombstones
    given,    \* producer -> number of its append that was stored last
    heard,    \* of the last acknowledgements that belong to one request: those that ended something in flight
    name,     \* the epoch as the server has told it; 0 where the reply that told it is lost
    greatest  \* of the epochs that it has told

epochs == <<name, greatest>>
told == <<at, latest, deleted, given, heard, epochs>>

TraceInit ==
    /\ Init /\ ReplayInit
    /\ at = [k \in Keys |-> 0] /\ latest = 0 /\ deleted = {} /\ given = [p \in Producers |-> 0] /\ heard = 0
    /\ name = 0 /\ greatest = 0

Stays == UNCHANGED <<vars, told>>
IsCurrent(line) == line.epoch = name
IsNamed(line) ==
    IF line.lost THEN name' = 0 /\ greatest' = greatest
    ELSE line.epoch > greatest /\ name' = line.epoch /\ greatest' = line.epoch
Lag(up_to) == Cardinality({n \in Numbers : n > up_to})

(* One entry: each place of a call's list is a producer of its own. *)
StoresOne(line) ==
    LET p == line.producer
        k == line.key
        is_new == records[p] < done[p] + 1
        instant == Max({latest, line.now})
    IN
    /\ Append(p, k) /\ (done' = done) = line.lost
    /\ UNCHANGED <<heard, epochs>>
    /\ IF is_new THEN
        /\ at' = [at EXCEPT ![k] = instant] /\ latest' = instant
        /\ deleted' = IF line.tombstone THEN deleted \union {sequence'} ELSE deleted
        /\ given' = [given EXCEPT ![p] = sequence']
       ELSE UNCHANGED <<at, latest, deleted, given>>
    /\ IF line.lost THEN TRUE ELSE
        /\ line.stored = is_new /\ line.number = given'[p]
        /\ is_new => line.replaced = order[k]

Subscribes(line) ==
    /\ Subscribe /\ IsNamed(line) /\ UNCHANGED <<at, latest, deleted, given, heard>>
    /\ IF line.lost THEN TRUE ELSE
        /\ acked = line.acked /\ sent = line.sent /\ sequence = line.sequence
        /\ Lag(sent) = line.lag /\ Cardinality(in_flight) = line.in_flight

Acks(line) ==
    /\ IsCurrent(line)
    \* One whose reply was lost is repeated.
    /\ IF line.number \in hand THEN AckOf(line.number)
       ELSE fence = epoch /\ line.number \notin in_flight /\ UNCHANGED vars
    /\ heard' = (IF line.first THEN 0 ELSE heard) + (IF line.number \in in_flight THEN 1 ELSE 0)
    /\ UNCHANGED <<at, latest, deleted, given, epochs>>

Tells(line) ==
    /\ acked' = line.acked /\ Cardinality(in_flight') = line.in_flight
    /\ line.heard = IF line.first THEN 0 ELSE heard

(* A row as it was appended; the value of a tombstone is empty, and says nothing of who has written it. *)
IsStored(row) ==
    /\ order[row.key] = row.number /\ at[row.key] = row.at /\ (row.number \in deleted) = row.tombstone
    /\ row.tombstone \/ <<row.key, row.number, <<row.producer, row.place>>>> \in values

Ascend(rows) == \A i \in 1..(Cardinality(DOMAIN rows) - 1) : rows[i].number < rows[i + 1].number
NumbersOf(rows) == {rows[i].number : i \in DOMAIN rows}

Fetches(line) ==
    LET again == IF resend THEN in_flight \intersect Numbers ELSE {}
        \* A call that has looked at as many as it may does not know that these were the last ones.
        is_unsure == resend /\ Cardinality(in_flight) >= line.limit /\ Max(in_flight) < sent
        most == IF is_unsure THEN 0 ELSE line.limit - Cardinality(again)
    IN
    /\ IsCurrent(line) /\ fence = epoch /\ UNCHANGED told
    /\ line.redeliver => resend
    /\ IF resend \/ ENABLED Fetch(most) THEN Fetch(most) /\ resend' = line.lost ELSE UNCHANGED vars
    /\ IF line.lost THEN TRUE ELSE
        /\ Tells(line) /\ Lag(sent') = line.lag
        /\ NumbersOf(line.again) = again /\ NumbersOf(line.new) = {n \in in_flight' : n > sent}
        /\ Ascend(line.again) /\ Ascend(line.new)
        /\ \A i \in DOMAIN line.again : IsStored(line.again[i])
        /\ \A i \in DOMAIN line.new : IsStored(line.new[i])

Rewinds(line) ==
    /\ Rewind /\ IsNamed(line) /\ UNCHANGED <<at, latest, deleted, given, heard>>
    /\ IF line.lost THEN TRUE ELSE (acked = line.before /\ acked' = line.acked /\ Lag(sent') = line.lag)

(* What retention no longer keeps at an instant. *)
AgedAt(line) == {k \in Rows : at[k] + line.keep < line.now}

Finds(line) ==
    LET due == {k \in Keys : IsDue(k)}
    IN
    /\ old = AgedAt(line) /\ UNCHANGED told
    /\ line.rows = {<<k, order[k], at[k], order[k] \in deleted>> : k \in due}
    /\ IF due = {} THEN UNCHANGED vars ELSE Find

Collects(line) ==
    /\ old = AgedAt(line) /\ UNCHANGED told
    /\ plan = line.rows
    /\ Collect /\ (plan' # {}) = line.lost
    /\ IF line.lost THEN TRUE ELSE
        LET gone == {row \in plan : order[row[1]] = row[2] /\ order'[row[1]] = 0}
        IN
        /\ line.removed = Cardinality(gone) /\ line.removed = Cardinality(Rows) - Cardinality(Rows')
        /\ line.stayed = {row[2] : row \in plan \ gone} /\ line.live = Cardinality(Rows')

Happens(line) ==
    CASE line.do = "append" -> StoresOne(line)
      [] line.do = "appended" -> line.live = Cardinality(Rows) /\ Stays
      [] line.do = "subscribe" -> Subscribes(line)
      [] line.do = "fetch" -> Fetches(line)
      [] line.do = "ack" -> Acks(line)
      [] line.do = "acked" -> Stays /\ Tells(line)
      [] line.do = "heartbeat" ->
            IsCurrent(line) /\ Lag(sent) = line.lag /\ Cardinality(in_flight) = line.in_flight /\ Stays
      [] line.do = "release" -> line.ok = IsCurrent(line) /\ Stays
      [] line.do = "refused" -> ~IsCurrent(line) /\ Stays
      [] line.do = "rewind" -> Rewinds(line)
      [] line.do = "find" -> Finds(line)
      [] line.do = "collect" -> Collects(line)
      [] line.do = "peek" ->
            /\ Ascend(line.rows) /\ \A i \in DOMAIN line.rows : IsStored(line.rows[i])
            /\ Cardinality(DOMAIN line.rows) = Cardinality(Rows) /\ Stays
      [] line.do = "inspect" ->
            /\ sequence = line.sequence /\ acked = line.acked /\ sent = line.sent
            /\ IF name = 0 THEN greatest = 0 \/ line.epoch > greatest ELSE IsCurrent(line)
            /\ Cardinality(Rows) = line.live /\ Cardinality(Numbers \intersect deleted) = line.tombstones
            /\ Lag(sent) = line.lag /\ Cardinality(in_flight) = line.in_flight /\ Stays

(* What nobody writes down: who is replaced or has died; and that time has passed. *)
Unwritten ==
    /\ UNCHANGED <<replayed, told>>
    /\ \E lane \in DOMAIN Lanes :
        /\ IsNext(lane)
        /\ LET line == Line(lane)
               aging == AgedAt(line) \ old
           IN
           \/ line.do = "subscribe" /\ Die
           \/ line.do = "fetch" /\ line.redeliver /\ IsCurrent(line) /\ AskAgain
           \/ line.do = "find" /\ Forget
           \/ line.do \in {"find", "collect"} /\ aging # {} /\ Age(CHOOSE k \in aging : TRUE)

TraceNext ==
    \/ \E lane \in DOMAIN Lanes :
        (TakesLine(lane) /\ Happens(Line(lane))) \/ (PassesOver(lane) /\ UNCHANGED <<vars, told>>)
    \/ Unwritten

(* Without what follows from the rest, and what is only counted. *)
View ==
    <<replayed, told, sequence, order, old, sent, acked, in_flight, resend, epoch, fence, hand, plan, records, done, asked>>
=============================================================================
