------------------------------ MODULE TraceOwner ------------------------------
(* What brokers, drivers and mirrors have written down of a client, against the model of its owner. docs/proofs.md says what
   is mapped. *)
EXTENDS Owner, Replay, Sequences

TraceInit == Init /\ ReplayInit

(* The last n messages that a copy holds are not compared where they live for two seconds only: they go by themselves. *)
Short(n) == n % 7 = 6
Numbers(messages) == {m[2] - 1 : m \in messages}
Lasting(numbers) == {n \in numbers : ~Short(n)}
IsLike(messages, numbers) == Lasting(Numbers(messages)) = Lasting(numbers)

Stays == UNCHANGED vars
TakesWrites(line) ==
    IF line.store = "redis" THEN TakesKeys /\ (line.epoch = 0 \/ line.epoch = redis.epoch)
    ELSE TakesRows /\ (line.epoch = 0 \/ line.epoch = pg.epoch)

(* A read of a copy, as the driver's next step or to compare. Nobody writes to a copy of PostgreSQL's but its drivers. *)
ReadsRows(d, line) ==
    /\ pg.owner = "postgres" => IsLike(rows.messages, line.numbers)
    /\ \/ Prepare(d) \/ ReadRows(d) \/ Stays
ReadsKeys(d, line) ==
    /\ ~TakesKeys => IsLike(keys.messages, line.numbers)
    /\ ReadKeys(d) \/ Stays

(* A copy that another one has told Redis of before: the first try is refused, and the driver tells. *)
TellOfCopy(d) ==
    /\ at[d] \in {"read", "held"} /\ Told(fence[d], "postgres", FALSE)
    /\ UNCHANGED <<pg, rows, keys, cohort, work, broker, counts>>

Tells(d, line) ==
    /\ \/ d > 0 /\ (TellOfFence(d) \/ Close(d) \/ Tell(d) \/ TellOfCopy(d))
       \/ TellByRouter
       \/ Stays
    /\ CASE line.reply = "set" ->
                /\ redis' = [owner |-> line.owner, epoch |-> line.epoch, mirrored |-> line.mirrored]
                /\ redis' # redis
         [] line.reply = "unchanged" -> redis' = redis /\ redis.epoch = line.epoch /\ redis.owner = line.owner
         [] line.reply = "stale" ->
                /\ redis' = redis
                /\ redis.epoch > line.epoch \/ (redis.epoch = line.epoch /\ redis.owner # line.owner)
         [] line.reply = "lost" -> redis'.epoch = line.epoch /\ redis'.owner = line.owner

IsEpoch(line) == line.epoch = 0 \/ pg'.epoch = line.epoch

(* Changes that the model does not have are noted, too: what was sent, and what was released. *)
MirrorOfThese(d) ==
    /\ at[d] = "idle" /\ pg.owner = "redis" /\ pg.mirrored /\ outbox[1] = {}
    /\ fence' = [fence EXCEPT ![d] = outbox[2]] /\ Goes(d, "mirrored")
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, held, broker, counts>>

Happens(line) ==
    LET d == line.driver IN
    CASE line.do = "take" -> IF cohort = d THEN Stays ELSE Take(d)
      [] line.do = "look" ->
            /\ pg.owner = line.owner /\ pg.epoch = line.epoch /\ pg.fenced = line.fenced /\ pg.mirrored = line.mirrored
            /\ Look \/ Stays
      [] line.do = "read rows" -> ReadsRows(d, line)
      [] line.do = "read keys" -> ReadsKeys(d, line)
      [] line.do = "read notes" ->
            /\ ~line.some /\ redis.mirrored => outbox[1] = {}
            /\ line.some /\ line.named => Lasting(Numbers(outbox[1])) \subseteq line.numbers
            /\ Stays
      [] line.do = "copy" ->
            /\ at[d] \in {"read", "held"} /\ fence[d] = line.epoch /\ Copy(d)
            /\ (at'[d] = "left") = ~line.ok
      [] line.do = "fence" ->
            /\ IF line.owner = "postgres" THEN FenceRows(d) ELSE FenceKeys(d)
            /\ pg'.fenced /\ IsEpoch(line)
      [] line.do = "tell" -> Tells(d, line)
      [] line.do = "hand over" -> HandOver(d) /\ (at'[d] = "given") = line.ok /\ (line.ok => IsEpoch(line))
      [] line.do = "return" -> Return(d) /\ (at'[d] = "given") = line.ok /\ (line.ok => IsEpoch(line))
      [] line.do = "leave" -> Leave(d) /\ (pg' # pg) = line.ok /\ (line.ok => IsEpoch(line))
      [] line.do = "mirror" -> Mirror(d) \/ MirrorOfThese(d)
      [] line.do = "trim" -> IF line.ok THEN TrimOutbox(d) /\ outbox[2] = fence[d] ELSE Stays
      [] line.do = "commit" -> IF pg.mirrored THEN Commit(d) /\ IsEpoch(line) ELSE Stays
      [] line.do = "save" ->
            /\ known.owner = line.store /\ TakesWrites(line) /\ saved = line.number
            /\ Writes(<<0, 0>>)
      [] line.do = "saved" -> saved > line.number /\ Stays
      [] line.do = "ack" ->
            LET those == {m \in owed : m[2] = line.number + 1} IN
            IF those = {} THEN Stays
            ELSE known.owner = line.store /\ TakesWrites(line) /\ \E m \in those : Writes(m)
      [] line.do = "fetch" -> IsLike((IF pg.owner = "redis" THEN keys ELSE rows).messages, line.numbers) /\ Stays
      [] line.do = "note" -> TakesWrites(line) /\ Stays
      [] line.do = "refused" -> ~TakesWrites(line) /\ Stays

(* What nobody writes down: a lease ends, a driver begins anew or gives up, a copy is equal already. *)
Again(d) == at[d] \notin {"idle", "dead"} /\ Goes(d, "idle")
            /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, fence, held, broker, counts>>
GivesUp(d) == at[d] # "left" /\ Die(d) /\ at'[d] = "left"
IsAlike(d) ==
    /\ at[d] \in {"read", "held"} /\ IsLike(keys.messages, Numbers(held[d].messages))
    /\ keys' = held[d] /\ Goes(d, IF at[d] = "read" THEN "ready" ELSE "equal")
    /\ UNCHANGED <<pg, redis, rows, outbox, cohort, fence, held, broker, counts>>

Unwritten ==
    /\ inside = 0 /\ UNCHANGED replayed
    /\ \/ Lapse \/ Lift
       \/ \E lane \in DOMAIN Lanes :
            /\ IsNext(lane)
            /\ LET line == Line(lane)
                   d == line.driver
               IN \/ line.do \in {"read rows", "mirror", "commit"} /\ Again(d)
                  \/ line.do = "fence" /\ line.owner = "redis" /\ Again(d)
                  \/ line.do = "leave" /\ GivesUp(d)
                  \/ line.do \in {"fence", "hand over"} /\ IsAlike(d)
                  \/ line.do \in {"save", "ack"} /\ line.epoch = 0 /\ Look

TraceNext ==
    \/ \E lane \in DOMAIN Lanes : (TakesLine(lane) /\ Happens(Line(lane))) \/ (PassesOver(lane) /\ UNCHANGED vars)
    \/ Unwritten

(* What does not matter any more: counts, what drivers held that write no further line, and a copy that will be overwritten. *)
View ==
    LET still == {Lanes[lane][1].driver : lane \in {lane \in DOMAIN Lanes : taken[lane] < Len(Lanes[lane])}}
    IN <<replayed, pg, redis, IF pg.owner = "redis" THEN Empty ELSE rows, keys, outbox, cohort, broker,
         [d \in still \ {0} |-> <<at[d], fence[d], held[d]>>]>>

=============================================================================
