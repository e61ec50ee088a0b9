--------------------------------- MODULE Owner ---------------------------------
(* A session that moves from PostgreSQL to Redis while its client is connected, back, and there again, until the commit.

   Each action is one script, or one transaction of PostgreSQL. A driver whose reply is lost, or that is killed, begins
   again, or another one does; what it has sent may have been done. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Drivers,
    Messages, \* that the broker saves
    Odd,      \* those of them that Redis does not take
    Crashes, Lapses, Takes, Backs \* drivers that die, leases that end beside a living driver, take-overs, ways back

VARIABLES
    pg,      \* what PostgreSQL says: owner, epoch, whether fenced and by whom, whether the lease is over and Redis mirrored
    redis,   \* what Redis was told: owner, epoch, whether it notes changes
    rows,    \* PostgreSQL's copy: messages, each with its packet id and number; last packet id
    keys,    \* the copy in Redis
    outbox,  \* changed messages that PostgreSQL does not have, and how many changes there were
    cohort,  \* the driver that may work
    at,      \* driver -> its place in the work
    fence,   \* driver -> epoch under which it works
    held,    \* driver -> what it has read
    known,   \* owner, epoch and mirror as the broker's router remembers them
    saved,   \* number of messages so far
    owed,    \* messages that were confirmed to the publisher, and not acknowledged by the client: what has to be true
    crashes, lapses, takes, backs

counts == <<crashes, lapses, takes, backs>>
work == <<at, fence, held>>
broker == <<known, saved, owed>>
vars == <<pg, redis, rows, keys, outbox, cohort, work, broker, counts>>

Empty == [messages |-> {}, last |-> 0]
IsCommitted == pg.owner = "redis" /\ ~pg.mirrored
IsOdd(m) == m[2] \in Odd

Init ==
    /\ pg = [owner |-> "postgres", epoch |-> 1, fenced |-> FALSE, driver |-> 0, over |-> FALSE, mirrored |-> FALSE]
    /\ redis = [owner |-> "none", epoch |-> 0, mirrored |-> FALSE]
    /\ rows = Empty /\ keys = Empty /\ outbox = <<{}, 0>>
    /\ cohort = CHOOSE d \in Drivers : TRUE
    /\ at = [d \in Drivers |-> "idle"] /\ fence = [d \in Drivers |-> 0] /\ held = [d \in Drivers |-> Empty]
    /\ known = [owner |-> "postgres", epoch |-> 1, mirrored |-> FALSE]
    /\ saved = 0 /\ owed = {}
    /\ crashes = 0 /\ lapses = 0 /\ takes = 0 /\ backs = 0

Goes(d, place) == at' = [at EXCEPT ![d] = place]

(* set_owner: Redis follows greater epochs only. *)
Told(epoch, owner, mirrored) ==
    IF redis.epoch > epoch \/ (redis.epoch = epoch /\ (redis.owner # owner \/ redis.mirrored = mirrored))
    THEN UNCHANGED <<redis, outbox>>
    ELSE
    /\ redis' = [owner |-> owner, epoch |-> epoch, mirrored |-> mirrored]
    /\ outbox' = IF mirrored THEN outbox ELSE <<{}, outbox[2]>>

(* fence_owner *)
MayFence(d, owner) == cohort = d /\ pg.owner = owner /\ (~pg.fenced \/ pg.driver = d)
Fence(d, place) ==
    /\ pg' = [pg EXCEPT !.fenced = TRUE, !.epoch = @ + 1, !.driver = d, !.over = FALSE]
    /\ fence' = [fence EXCEPT ![d] = pg.epoch + 1]
    /\ Goes(d, place)
Holds(d) == cohort = d /\ pg.fenced /\ ~pg.over /\ pg.driver = d /\ pg.epoch = fence[d]
Given(owner) == [pg EXCEPT !.owner = owner, !.fenced = FALSE, !.epoch = @ + 1, !.mirrored = (owner = "redis")]

(* To Redis. Without a fence: set aside what nobody can deliver, and read the rest. A driver that was replaced may begin. *)
Prepare(d) ==
    /\ at[d] = "idle" /\ pg.owner = "postgres"
    /\ rows' = [rows EXCEPT !.messages = {m \in @ : ~IsOdd(m)}]
    /\ owed' = owed \ (rows.messages \ rows'.messages)
    /\ held' = [held EXCEPT ![d] = rows']
    /\ fence' = [fence EXCEPT ![d] = pg.epoch]
    /\ Goes(d, IF \E m \in rows'.messages : IsOdd(m) THEN "idle" ELSE "read")
    /\ UNCHANGED <<pg, redis, keys, outbox, cohort, known, saved, counts>>

(* sync_session, before the fence or behind it *)
Copy(d) ==
    /\ at[d] \in {"read", "held"}
    /\ LET is_refused == redis.epoch > fence[d] \/ (redis.epoch = fence[d] /\ redis.owner # "postgres") IN
        IF is_refused THEN Goes(d, "left") /\ UNCHANGED <<redis, keys, outbox>>
        ELSE
        /\ redis' = [owner |-> "postgres", epoch |-> fence[d], mirrored |-> FALSE]
        /\ keys' = [messages |-> held[d].messages, last |-> held[d].last]
        /\ outbox' = <<{}, outbox[2]>>
        /\ Goes(d, IF at[d] = "read" THEN "ready" ELSE "equal")
    /\ UNCHANGED <<pg, rows, cohort, fence, held, broker, counts>>

(* A copy that is equal already is not written. *)
IsEqual(d) ==
    /\ at[d] \in {"read", "held"} /\ keys = held[d]
    /\ Goes(d, IF at[d] = "read" THEN "ready" ELSE "equal")
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, fence, held, broker, counts>>

FenceRows(d) ==
    /\ at[d] = "ready"
    /\ IF MayFence(d, "postgres") THEN Fence(d, "fenced") ELSE Goes(d, "idle") /\ UNCHANGED <<pg, fence>>
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, held, broker, counts>>

TellOfFence(d) ==
    /\ at[d] = "fenced" /\ Told(fence[d], "postgres", FALSE) /\ Goes(d, "told")
    /\ UNCHANGED <<pg, rows, keys, cohort, fence, held, broker, counts>>

ReadRows(d) ==
    /\ at[d] = "told"
    /\ held' = [held EXCEPT ![d] = rows]
    /\ Goes(d, IF \E m \in rows.messages : IsOdd(m) THEN "left" ELSE "held")
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, fence, broker, counts>>

(* flip_owner *)
HandOver(d) ==
    /\ at[d] = "equal"
    /\ IF Holds(d) THEN pg' = Given("redis") /\ Goes(d, "given") ELSE pg' = pg /\ Goes(d, "left")
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, fence, held, broker, counts>>

(* Back. *)
FenceKeys(d) ==
    /\ at[d] = "idle" /\ backs < Backs /\ pg.mirrored /\ MayFence(d, "redis")
    /\ Fence(d, "closing")
    /\ backs' = backs + 1
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, held, broker, crashes, lapses, takes>>

Close(d) ==
    /\ at[d] = "closing" /\ Told(fence[d], "fenced", TRUE)
    /\ Goes(d, IF redis'.epoch = fence[d] THEN "closed" ELSE "left")
    /\ UNCHANGED <<pg, rows, keys, cohort, fence, held, broker, counts>>

ReadKeys(d) ==
    /\ at[d] = "closed"
    /\ held' = [held EXCEPT ![d] = keys]
    /\ Goes(d, "returning")
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, fence, broker, counts>>

Return(d) ==
    /\ at[d] = "returning"
    /\ IF Holds(d) THEN pg' = Given("postgres") /\ rows' = held[d] /\ Goes(d, "given")
       ELSE UNCHANGED <<pg, rows>> /\ Goes(d, "left")
    /\ UNCHANGED <<redis, keys, outbox, cohort, fence, held, broker, counts>>

(* end_mirror: no way back from here. *)
Commit(d) ==
    /\ at[d] = "idle" /\ cohort = d /\ pg.owner = "redis" /\ pg.mirrored /\ ~pg.fenced
    /\ pg' = [pg EXCEPT !.mirrored = FALSE, !.epoch = @ + 1]
    /\ fence' = [fence EXCEPT ![d] = pg.epoch]
    /\ Goes(d, "given")
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, held, broker, counts>>

(* set_owner after all three; the owner under the epoch that the driver has made is told, if it still is that. *)
Tell(d) ==
    /\ at[d] = "given"
    /\ IF pg.epoch = fence[d] + 1 THEN Told(pg.epoch, pg.owner, pg.mirrored) ELSE UNCHANGED <<redis, outbox>>
    /\ Goes(d, "idle")
    /\ UNCHANGED <<pg, rows, keys, cohort, fence, held, broker, counts>>

(* unfence_owner *)
Leave(d) ==
    /\ at[d] = "left"
    /\ pg' = IF pg.fenced /\ pg.driver = d /\ pg.epoch = fence[d] THEN [pg EXCEPT !.fenced = FALSE, !.epoch = @ + 1] ELSE pg
    /\ Goes(d, "idle")
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, fence, held, broker, counts>>

(* The mirror: one transaction writes what is noted; then the note goes unless it has grown. *)
Mirror(d) ==
    /\ at[d] = "idle" /\ pg.owner = "redis" /\ pg.mirrored /\ outbox[1] # {}
    /\ rows' = [messages |-> (rows.messages \ outbox[1]) \union (keys.messages \intersect outbox[1]), last |-> keys.last]
    /\ fence' = [fence EXCEPT ![d] = outbox[2]]
    /\ Goes(d, "mirrored")
    /\ UNCHANGED <<pg, redis, keys, outbox, cohort, held, broker, counts>>

TrimOutbox(d) ==
    /\ at[d] = "mirrored"
    /\ outbox' = IF outbox[2] = fence[d] THEN <<{}, outbox[2]>> ELSE outbox
    /\ Goes(d, "idle")
    /\ UNCHANGED <<pg, redis, rows, keys, cohort, fence, held, broker, counts>>

(* A driver that meets an error lifts its fence, as far as that is its own still. *)
Die(d) ==
    /\ at[d] \notin {"idle", "dead"} /\ crashes < Crashes
    /\ crashes' = crashes + 1
    /\ Goes(d, "dead") \/ Goes(d, "left")
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, fence, held, broker, lapses, takes, backs>>

Restart(d) ==
    /\ at[d] = "dead" /\ Goes(d, "idle")
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, fence, held, broker, counts>>

Take(d) ==
    /\ cohort # d /\ takes < Takes
    /\ takes' = takes + 1 /\ cohort' = d
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, work, broker, crashes, lapses, backs>>

(* A lease ends; who comes next lifts the fence. *)
Lapse ==
    /\ pg.fenced /\ ~pg.over
    /\ lapses' = IF at[pg.driver] \notin {"idle", "dead"} THEN lapses + 1 ELSE lapses
    /\ lapses' <= Lapses
    /\ pg' = [pg EXCEPT !.over = TRUE]
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, work, broker, crashes, takes, backs>>

Lift ==
    /\ pg.fenced /\ pg.over
    /\ pg' = [pg EXCEPT !.fenced = FALSE, !.epoch = @ + 1]
    /\ UNCHANGED <<redis, rows, keys, outbox, cohort, work, broker, counts>>

(* The router asks PostgreSQL, and tells Redis where that has not heard. *)
Look ==
    /\ ~pg.fenced /\ known.epoch # pg.epoch
    /\ known' = [owner |-> pg.owner, epoch |-> pg.epoch, mirrored |-> pg.mirrored]
    /\ UNCHANGED <<pg, redis, rows, keys, outbox, cohort, work, saved, owed, counts>>

TellByRouter ==
    /\ redis.epoch < known.epoch
    /\ Told(known.epoch, known.owner, known.mirrored)
    /\ UNCHANGED <<pg, rows, keys, cohort, work, broker, counts>>

TakesRows == pg.owner = "postgres" /\ ~pg.fenced
TakesKeys == redis.owner = "redis"

(* A call of the broker: a save, by which the message whose packet id comes again is overwritten, or an acknowledgement. *)
Saved(copy) ==
    LET m == <<copy.last + 1, saved + 1>>
    IN [messages |-> {n \in copy.messages : n[1] # m[1]} \union {m}, last |-> m[1]]
Writes(ends) ==
    LET is_save == ends = <<0, 0>>
        New(copy) == IF is_save THEN Saved(copy) ELSE [copy EXCEPT !.messages = @ \ {ends}]
        copy == IF known.owner = "redis" THEN keys ELSE rows
        changed == IF is_save THEN <<copy.last + 1, saved + 1>> ELSE ends
    IN
    /\ is_save => saved < Messages
    /\ saved' = IF is_save THEN saved + 1 ELSE saved
    /\ owed' = IF is_save THEN owed \union {changed} ELSE owed \ {ends}
    /\ \/ /\ known.owner = "postgres" /\ TakesRows /\ known.epoch = pg.epoch
          /\ rows' = New(rows) /\ UNCHANGED <<keys, outbox>>
       \/ /\ known.owner = "redis" /\ TakesKeys /\ known.epoch = redis.epoch
          /\ keys' = New(keys) /\ rows' = rows
          /\ outbox' = IF redis.mirrored THEN <<outbox[1] \union {changed}, outbox[2] + 1>> ELSE outbox
    /\ UNCHANGED <<pg, redis, cohort, work, known, counts>>
Write == \E ends \in owed \union {<<0, 0>>} : Writes(ends)

Step(d) ==
    \/ Prepare(d) \/ Copy(d) \/ IsEqual(d) \/ FenceRows(d) \/ TellOfFence(d) \/ ReadRows(d) \/ HandOver(d)
    \/ Close(d) \/ ReadKeys(d) \/ Return(d) \/ Commit(d) \/ Tell(d) \/ Leave(d) \/ TrimOutbox(d)

Next ==
    \/ Lapse \/ Lift \/ Look \/ TellByRouter \/ Write
    \/ \E d \in Drivers : Step(d) \/ FenceKeys(d) \/ Mirror(d) \/ Die(d) \/ Restart(d) \/ Take(d)

Fairness == WF_vars(Lapse) /\ WF_vars(Lift) /\ \A d \in Drivers : WF_vars(Step(d))

Spec == Init /\ [][Next]_vars /\ Fairness

(* Never do both stores take writes. *)
OneOwner == ~(TakesRows /\ TakesKeys) /\ redis.epoch <= pg.epoch

(* The owner's store has all that was confirmed and not acknowledged, and nothing else. *)
NothingIsLost == owed = IF pg.owner = "redis" THEN keys.messages ELSE rows.messages

(* What the mirror has still to write is noted. *)
ChangesAreNoted ==
    pg.owner = "redis" /\ pg.mirrored =>
        (rows.messages \ keys.messages) \union (keys.messages \ rows.messages) \subseteq outbox[1]

(* No fence stays, and the move comes to its commit, unless its drivers are dead for ever. *)
FencesEnd == pg.fenced ~> ~pg.fenced
EverythingEnds == <>IsCommitted \/ <>[](\A d \in Drivers : at[d] = "dead" \/ cohort # d)
=============================================================================
