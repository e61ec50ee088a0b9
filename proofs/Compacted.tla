------------------------------ MODULE Compacted ------------------------------
(* A compacted queue: producers append values of keys, one consumer reads the newest ones, and a collector removes what
   retention lets go beside both.

   Each action is one call of a script, which the server carries out as a whole; its name stands above the action. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Keys,
    Producers,
    Appends, \* of each producer
    Window,  \* messages that may be in flight
    Troubles \* replies that are lost, consumers and collectors that die or are replaced, rewinds

VARIABLES
    sequence,              \* number given out last
    order,                 \* key -> number of its value; 0: none
    values,                \* stored values: key, number, message
    old,                   \* keys whose value is past its retention
    sent, acked,           \* numbers up to which all is delivered, and acknowledged
    in_flight,             \* numbers that were delivered and not acknowledged
    resend,                \* whether what is in flight is to be delivered again
    epoch,                 \* number of the last subscription or rewind
    fence, hand,           \* of the consumer: its epoch, 0 for none; the numbers that it has got and not acknowledged
    late,                  \* acknowledgements of consumers that are gone, which may still arrive: epoch, number
    plan,                  \* what the collector has found and is about to remove: key, number
    records,               \* producer -> number of its append that was stored last
    done, asked,           \* producer -> appends that it was told of; key of the append that it repeats, or Nothing
    troubles,
    last, owed             \* key -> message that is its newest; numbers that the consumer has to get: what has to be true

queue == <<sequence, order, values, old, last>>
reader == <<sent, acked, in_flight, resend, epoch, fence, hand, late, owed>>
producer == <<records, done, asked>>
vars == <<queue, reader, producer, plan, troubles>>

Nothing == "nothing"
Max(S) == CHOOSE n \in S : \A m \in S : n >= m
Min(S) == CHOOSE n \in S : \A m \in S : n <= m
Rows == {k \in Keys : order[k] > 0}
Numbers == {order[k] : k \in Rows}
Trouble == troubles < Troubles /\ troubles' = troubles + 1
Lowest(S, most) == {n \in S : Cardinality({m \in S : m <= n}) <= most}

Init ==
    /\ sequence = 0 /\ order = [k \in Keys |-> 0] /\ values = {} /\ old = {}
    /\ sent = 0 /\ acked = 0 /\ in_flight = {} /\ resend = FALSE
    /\ epoch = 0 /\ fence = 0 /\ hand = {} /\ late = {}
    /\ plan = {}
    /\ records = [p \in Producers |-> 0] /\ done = [p \in Producers |-> 0] /\ asked = [p \in Producers |-> Nothing]
    /\ troubles = 0
    /\ last = [k \in Keys |-> Nothing] /\ owed = {}

(* append, under the producer's number: the new value of a key replaces the one before, with its row. *)
Append(p, k) ==
    LET number == done[p] + 1
        n == sequence + 1
        message == <<p, number>>
        is_new == records[p] < number
    IN
    /\ number <= Appends /\ asked[p] \in {k, Nothing}
    /\ IF is_new THEN
        /\ sequence' = n
        /\ order' = [order EXCEPT ![k] = n]
        /\ values' = {v \in values : v[1] # k} \union {<<k, n, message>>}
        /\ old' = old \ {k}
        /\ owed' = (owed \ {order[k]}) \union {n}
        /\ last' = IF records[p] < number THEN [last EXCEPT ![k] = message] ELSE last
        /\ records' = [records EXCEPT ![p] = number]
       ELSE UNCHANGED <<queue, owed, records>>
    \* The producer is told, or repeats.
    /\ \/ done' = [done EXCEPT ![p] = number] /\ asked' = [asked EXCEPT ![p] = Nothing] /\ UNCHANGED troubles
       \/ Trouble /\ asked' = [asked EXCEPT ![p] = k] /\ UNCHANGED done
    /\ UNCHANGED <<sent, acked, in_flight, resend, epoch, fence, hand, late, plan>>

(* includes/acked_up_to: the cursor is before the lowest number in flight, and never goes back. *)
Cursor == Max({acked, IF in_flight' = {} THEN sent' ELSE Min(in_flight') - 1})

(* subscribe: what is in flight is delivered again, before anything else. *)
Subscribe ==
    /\ fence = 0
    /\ epoch' = epoch + 1 /\ fence' = epoch + 1
    /\ resend' = (in_flight # {})
    /\ UNCHANGED <<queue, sent, acked, in_flight, hand, late, owed, producer, plan, troubles>>

(* fetch: what was overwritten or removed is not delivered again. A reply that is lost is asked for again. A call may ask
   for less than there is room for. *)
Fetch(most) ==
    LET kept == IF resend THEN in_flight \intersect Numbers ELSE in_flight
        new == Lowest({n \in Numbers : n > sent}, Min({most, Window - Cardinality(kept)}))
    IN
    /\ fence > 0 /\ fence = epoch
    /\ resend \/ new # {}
    /\ sent' = Max({sent} \union new)
    /\ in_flight' = kept \union new
    /\ acked' = Cursor
    /\ \/ hand' = hand \union new \union (IF resend THEN kept ELSE {}) /\ resend' = FALSE /\ UNCHANGED troubles
       \/ Trouble /\ resend' = TRUE /\ UNCHANGED hand
    /\ UNCHANGED <<queue, epoch, fence, late, owed, producer, plan>>

Read == \E most \in 0..Window : Fetch(most)

(* A consumer that was not answered asks for all in flight again, also when nothing of its call was carried out. *)
AskAgain ==
    /\ fence > 0 /\ fence = epoch /\ ~resend /\ Trouble
    /\ resend' = TRUE
    /\ UNCHANGED <<queue, sent, acked, in_flight, epoch, fence, hand, late, owed, producer, plan>>

(* ack, in any order; that of an older subscription is refused. *)
Acknowledge(of, n) ==
    LET is_heard == of = epoch
    IN
    /\ sent' = sent
    /\ in_flight' = IF is_heard THEN in_flight \ {n} ELSE in_flight
    /\ acked' = IF is_heard THEN Cursor ELSE acked
    /\ owed' = IF of = epoch THEN owed \ {n} ELSE owed
    /\ UNCHANGED <<queue, resend, epoch, fence, producer, plan, troubles>>

AckOf(n) == fence = epoch /\ n \in hand /\ Acknowledge(fence, n) /\ hand' = hand \ {n} /\ late' = late
Ack == \E n \in hand : AckOf(n)
LateAck == \E each \in late : Acknowledge(each[1], each[2]) /\ late' = late /\ hand' = hand

(* The consumer is gone: it has died, or learns that it was replaced. What it has acknowledged may be on its way. *)
Gone == fence' = 0 /\ hand' = {} /\ late' = late \union {<<fence, n>> : n \in hand}

Die ==
    /\ fence > 0 /\ Trouble
    /\ Gone
    /\ UNCHANGED <<queue, sent, acked, in_flight, resend, epoch, owed, producer, plan>>

(* rewind, to the earliest: nothing is in flight any more, and the subscription has ended. *)
Rewind ==
    LET before == IF Numbers = {} THEN sequence ELSE Min(Numbers) - 1
    IN
    /\ sequence > 0 /\ Trouble
    /\ sent' = before /\ acked' = before /\ in_flight' = {} /\ resend' = FALSE
    /\ epoch' = epoch + 1
    /\ owed' = Numbers
    /\ Gone
    /\ UNCHANGED <<queue, producer, plan>>

(* Time passes: retention no longer keeps a value. *)
Age(k) ==
    /\ k \in Rows \ old
    /\ old' = old \union {k}
    /\ UNCHANGED <<sequence, order, values, last, reader, producer, plan, troubles>>

(* includes/is_acked and includes/retention, policy acked_only *)
IsAcked(n) == n <= acked \/ (n <= sent /\ n \notin in_flight)
IsDue(k) == k \in Rows /\ k \in old /\ IsAcked(order[k])

(* find_due: names rows, and changes nothing. *)
Find ==
    /\ plan = {}
    /\ plan' = {<<k, order[k]>> : k \in {k \in Keys : IsDue(k)}}
    /\ plan' # {}
    /\ UNCHANGED <<queue, reader, producer, troubles>>

(* collect: decides again, and removes those of the named rows that have the same number and are still due. A call whose
   reply is lost is repeated. *)
Collect ==
    LET going == {k \in Keys : \E row \in plan : k = row[1] /\ order[k] = row[2] /\ IsDue(k)}
    IN
    /\ plan # {}
    /\ order' = [k \in Keys |-> IF k \in going THEN 0 ELSE order[k]]
    /\ values' = {v \in values : v[1] \notin going}
    /\ old' = old \ going
    /\ \/ plan' = {} /\ UNCHANGED troubles
       \/ Trouble /\ UNCHANGED plan
    /\ UNCHANGED <<sequence, last, reader, producer>>

(* A collector dies; another one looks anew. *)
Forget ==
    /\ plan # {} /\ Trouble /\ plan' = {}
    /\ UNCHANGED <<queue, reader, producer>>

Next ==
    \/ \E p \in Producers, k \in Keys : Append(p, k)
    \/ Subscribe \/ Read \/ AskAgain \/ Ack \/ LateAck \/ Die \/ Rewind
    \/ Find \/ Collect \/ Forget \/ \E k \in Keys : Age(k)

(* A consumer and the collector go on; everything else may happen or not. *)
Fairness == WF_vars(Subscribe) /\ WF_vars(Read) /\ WF_vars(Ack) /\ WF_vars(Find) /\ WF_vars(Collect)

Spec == Init /\ [][Next]_vars /\ Fairness

(* The newest value of a key is the one that came last, and no append that was confirmed is missing. *)
LastValueIsKept ==
    /\ \A k \in Rows : <<k, order[k], last[k]>> \in values
    /\ \A p \in Producers : done[p] <= records[p]

(* Each row has its value, and there is no other value. *)
StoreIsExact ==
    /\ {<<v[1], v[2]>> : v \in values} = {<<k, order[k]>> : k \in Rows}
    /\ Cardinality(values) = Cardinality(Rows)

(* What the consumer has still to read is stored, and waits behind what was sent, or in flight. *)
NothingIsMissed == owed = {n \in Numbers : n > sent \/ n \in in_flight}

(* All up to the cursor is acknowledged, and what follows it is not. *)
CursorIsTrue == acked = IF in_flight = {} THEN sent ELSE Min(in_flight) - 1

(* What is to be read is read, or replaced, in the end. *)
EverythingArrives == \A n \in 1..(Appends * Cardinality(Producers)) : n \in owed ~> n \notin owed

(* What retention lets go goes. *)
GarbageGoes == \A k \in Keys : IsDue(k) ~> ~IsDue(k)
=============================================================================
