---------------------------- MODULE TraceFanoutLog ----------------------------
(* What publishers and workers of a fan-out queue have written down, against the model of its log. A call of a script for
   several messages is several lines. docs/proofs.md says what is mapped. *)
EXTENDS FanoutLog, Replay

CONSTANT Ordered \* consumers that get one message at a time

VARIABLES
    clock, \* the latest instant that the server has told
    until, \* consumer -> leases, each with its deadline; 0 where the reply that told it is lost
    ends   \* last number of each call of publish, whose messages are one entry of the log

told == <<clock, until, ends>>

TraceInit == Init /\ ReplayInit /\ clock = 0 /\ until = [c \in Consumers |-> {}] /\ ends = {0}

Stays == UNCHANGED <<vars, told>>
Tells(now) == now >= clock /\ clock' = now
Over(c, now) == {lease \in until[c] : lease[3] <= now}
HasWork(c) == ready[c] # <<>> \/ Unread(c) # {}
IsBusy(c) == c \in Ordered /\ leases[c] # {}

(* A lease that has run out ends. The oldest message gets to the head: the others are put there before. *)
Ends(c, lease) ==
    /\ ends' = ends /\ Reclaim(c) /\ leases' = [leases EXCEPT ![c] = @ \ {<<lease[1], lease[2]>>}]
    /\ until' = [until EXCEPT ![c] = @ \ {lease}]

IsNextToEnd(line, lease) ==
    IF line.first THEN TRUE ELSE ready[line.consumer] # <<>> /\ lease[1] < Head(ready[line.consumer])

EndsOne(line) ==
    LET c == line.consumer IN
    IF line.lost THEN
        \* Its instant is not known, nor how many it has ended.
        LET instants == {clock} \union {lease[3] : lease \in {each \in until[c] : each[3] > clock /\ each[3] <= line.now}}
            now == IF line.first THEN instants ELSE {clock}
        IN \E instant \in now :
            /\ clock' = instant
            \* Whether a lease is over whose deadline is not known shows later.
            /\ \/ {lease \in Over(c, instant) : lease[3] > 0} = {} /\ UNCHANGED <<vars, until, ends>>
               \/ \E lease \in Over(c, instant) : IsNextToEnd(line, lease) /\ Ends(c, lease)
    ELSE
        /\ Tells(line.now)
        /\ \E lease \in Over(c, line.now) : IsNextToEnd(line, lease) /\ Ends(c, lease)

Claims(line) ==
    LET c == line.consumer IN
    IF line.lost /\ (~HasWork(c) \/ IsBusy(c)) THEN Stays
    ELSE
    \/ /\ ~IsBusy(c) /\ (line.lost \/ Tells(line.now))
       /\ Claim(c, line.worker) /\ ends' = ends
       /\ line.lost => clock' = clock
       /\ \E lease \in leases'[c] \ leases[c] :
            /\ line.lost \/ lease[1] = line.number
            /\ until' = [until EXCEPT ![c] = @ \union {<<lease[1], lease[2], line.deadline>>}]
    \/ line.lost /\ Stays

(* What a claim says beside its messages. *)
Claimed(line) ==
    LET c == line.consumer IN
    /\ Tells(line.now) /\ UNCHANGED <<vars, until, ends>>
    /\ published = line.logged
    /\ \A lease \in until[c] : lease[3] = 0 \/ lease[3] > line.now
    /\ IF c \in Ordered THEN line.is_last => ~HasWork(c) \/ IsBusy(c) ELSE line.is_last = ~HasWork(c)

Work(w) == <<at_work[w][3], at_work[w][2]>>
IsHeld(line) ==
    LET w == line.worker IN
    /\ at_work[w] # Nothing /\ at_work[w][1] = line.consumer /\ at_work[w][3] = line.number
    /\ line.lost \/ line.ok = (Work(w) \in leases[line.consumer])
Without(line) ==
    [until EXCEPT ![line.consumer] = {lease \in @ : <<lease[1], lease[2]>> # Work(line.worker)}]

Extends(line) ==
    LET c == line.consumer
        mine == {lease \in until[c] : <<lease[1], lease[2]>> = Work(line.worker)}
    IN
    /\ IsHeld(line) /\ UNCHANGED <<vars, ends>>
    /\ IF line.lost THEN clock' = clock ELSE Tells(line.now)
    /\ until' = IF mine = {} THEN until
                ELSE [until EXCEPT ![c] = (@ \ mine) \union {<<line.number, Work(line.worker)[2], line.deadline>>}]

Happens(line) ==
    CASE line.do = "register" ->
            /\ UNCHANGED told
            /\ IF line.new THEN Register(line.consumer) /\ (line.lost \/ line.next = published + 1)
               ELSE line.consumer \in members /\ UNCHANGED vars
      [] line.do = "unregister" ->
            /\ UNCHANGED told
            /\ IF line.new THEN
                /\ line.lost \/ line.released = Cardinality(owed[line.consumer])
                /\ Unregister(line.consumer)
                /\ line.lost \/ line.freed = Cardinality(payloads \ payloads')
               ELSE line.consumer \notin members /\ UNCHANGED vars
      [] line.do = "members" ->
            line.members = {<<c, cursor[c]>> : c \in members} /\ Tells(line.now) /\ UNCHANGED <<vars, until, ends>>
      [] line.do = "inspect" ->
            /\ line.leased = Cardinality(leases[line.consumer]) /\ line.unread = Cardinality(Unread(line.consumer))
            /\ line.ready = Len(ready[line.consumer])
            /\ Stays
      [] line.do = "count" -> line.stored = Cardinality(payloads) /\ Stays
      [] line.do = "publish" ->
            /\ Publish /\ UNCHANGED <<clock, until>>
            /\ ends' = IF line.more THEN ends ELSE ends \union {published'}
            /\ line.lost \/ (published' = line.number /\ Cardinality(members) = line.consumers)
      [] line.do = "end" -> EndsOne(line)
      [] line.do = "pull" ->
            /\ UNCHANGED told
            /\ IF ~IsBusy(line.consumer) /\ ready[line.consumer] = <<>> /\ HasWork(line.consumer)
               THEN Pull(line.consumer, published) ELSE UNCHANGED vars
      [] line.do = "pull rest" ->
            /\ UNCHANGED told
            /\ IF cursor[line.consumer] \in ends THEN UNCHANGED vars
               ELSE Pull(line.consumer, Min({n \in ends : n > cursor[line.consumer]}))
      [] line.do = "claim" -> Claims(line)
      [] line.do = "claimed" -> Claimed(line)
      [] line.do = "extend" -> Extends(line)
      [] line.do = "ack" ->
            /\ IsHeld(line) /\ Ack(line.worker) /\ (at_work' = at_work) = line.lost
            /\ until' = Without(line) /\ UNCHANGED <<clock, ends>>
      [] line.do = "acked" -> line.freed = Cardinality(line.numbers \ payloads) /\ Stays
      [] line.do = "return" ->
            \* It has been given back before, and the reply was lost.
            IF at_work[line.worker] = Nothing THEN ~line.ok /\ Stays
            ELSE IsHeld(line) /\ Return(line.worker) /\ until' = Without(line) /\ UNCHANGED <<clock, ends>>

(* What nobody writes down: a worker that has died has left its place to another one. *)
Unwritten ==
    /\ UNCHANGED <<replayed, told>>
    /\ \E lane \in DOMAIN Lanes :
        /\ IsNext(lane)
        /\ Line(lane).do = "claim" /\ at_work[Line(lane).worker] # Nothing /\ Die(Line(lane).worker)

TraceNext ==
    \/ \E lane \in DOMAIN Lanes :
        (TakesLine(lane) /\ Happens(Line(lane))) \/ (PassesOver(lane) /\ UNCHANGED <<vars, told>>)
    \/ Unwritten

(* Without what follows from the rest, and with those who hold a lease in place of its token. *)
View ==
    LET Holders(c, n, token) == {w \in Workers : at_work[w] = <<c, token, n>>}
    IN <<replayed, clock, published, log, members, cursor, ready,
         [c \in Consumers |-> {<<lease[1], lease[3], Holders(c, lease[1], lease[2])>> : lease \in until[c]}],
         [w \in Workers |-> IF at_work[w] = Nothing THEN Nothing ELSE <<at_work[w][1], at_work[w][3]>>]>>
=============================================================================
