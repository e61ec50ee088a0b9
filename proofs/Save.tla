--------------------------------- MODULE Save ---------------------------------
(* A session in Redis to which our store saves batches that it repeats, and to which TBMQ adds beside it.

   Each action is one script, which the server carries out as a whole. A batch is several calls; the reply to a call may
   be lost, and a call that its writer has given up may still arrive, at any later time. TBMQ knows the set, the payloads
   and the last packet id, and nothing of the session's hash. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Writers, \* each is a source of batches
    Batches, \* of each writer
    Calls,   \* of each batch
    Ids,     \* packet ids: 1..Ids, then again from 1
    Limit,   \* messages of the session, fewer than packet ids
    Theirs,  \* messages that TBMQ adds
    Losses   \* calls whose writers give them up

VARIABLES
    payload,      \* packet id -> message stored under it, by the order of arrival; 0: none
    serial,       \* packet id -> its score in the set of references; 0: none
    set_ends,     \* whether the set has an expiry, which only our store gives
    last,         \* last packet id; 0: none
    last_ends,    \* whether its key has the expiry that our store gave it
    hash,         \* what only our store knows of the session, see Init
    records,      \* writer -> batch saved last, and which of its calls
    known,        \* writer -> last packet id as it has heard it
    passed,       \* writer -> how many packet ids after that it has found in use
    done,         \* writer -> calls that it was told of
    must_trim,    \* writers that are about to trim, as they have been told that their call is stored and there are too many
    late, losses, \* calls given up, which may still arrive; how many there were
    arrived,      \* number of messages so far
    ours,         \* those of our writers in the order of arrival: writer, and number of the call
    owed, sent    \* messages that neither the client nor a limit has ended; the last one that was sent: what has to be true

stored == <<payload, serial, set_ends, last, last_ends, hash, records, arrived, ours, owed>>
vars == <<stored, known, passed, done, must_trim, late, losses, sent>>

Nothing == <<>>
Max(S) == CHOOSE n \in S : \A m \in S : n >= m
Min(S) == CHOOSE n \in S : \A m \in S : n <= m
Waiting == {i \in 1..Ids : serial[i] > 0}
Highest == IF Waiting = {} THEN 0 ELSE Max({serial[i] : i \in Waiting})
After(id, steps) == 1 + ((id + steps - 1) % Ids)
Batch(n) == 1 + ((n - 1) \div Calls)
Added == arrived - Len(ours)
Range(s) == {s[i] : i \in DOMAIN s}
Of(w) == SelectSeq(ours, LAMBDA each : each[1] = w)

Init ==
    /\ payload = [i \in 1..Ids |-> 0] /\ serial = [i \in 1..Ids |-> 0]
    /\ last = 0 /\ last_ends = FALSE /\ set_ends = FALSE
    \* Serial and packet id of the last save; whether the session has an end, lasts for ever, or neither yet; up to which
    \* serial messages were sent; last packet id and highest serial when that was known to be true, if not those of the save.
    /\ hash = [serial |-> 0, packet_id |-> 0, lasts |-> "new", delivered |-> 0, at |-> Nothing]
    /\ records = [w \in Writers |-> <<0, {}>>]
    /\ known = [w \in Writers |-> 0] /\ passed = [w \in Writers |-> 0] /\ done = [w \in Writers |-> 0]
    /\ must_trim = {} /\ late = {} /\ losses = 0
    /\ arrived = 0 /\ ours = <<>> /\ owed = {} /\ sent = 0

(* includes/delivered: the serial up to which the messages were sent, as far as it is proven. *)
Delivered ==
    LET base == IF hash.at = Nothing THEN <<hash.packet_id, hash.serial>> ELSE hash.at
        added == (last + Ids - base[1]) % Ids
        noted == {i \in Waiting : serial[i] <= hash.delivered}
        old == {i \in noted : (i + Ids - base[1] - 1) % Ids >= added}
        is_last_old == \E i \in old : \A j \in noted : serial[i] >= serial[j]
    IN
    IF Waiting = {} THEN hash.delivered
    ELSE IF ~set_ends \/ Highest > base[2] + added THEN 0
    ELSE IF noted = {} \/ is_last_old THEN hash.delivered
    ELSE IF old = {} THEN 0
    ELSE Max({serial[i] : i \in old})

(* Messages end: the client acknowledges them, or there are too many. *)
Ends(S, left) == left = [i \in 1..Ids |-> IF i \in S THEN 0 ELSE serial[i]]
Oldest(S, of, most) == {i \in S : Cardinality({j \in S : of[j] >= of[i]}) > most}

(* save_messages, for a call: writer, number of the message, last packet id that the writer knows, packet id to use. *)
Recorded(call) ==
    LET of == records[call[1]]
    IN of[1] > Batch(call[2]) \/ (of[1] = Batch(call[2]) /\ call[2] \in of[2])
IsOurs(expected) ==
    /\ hash.serial > 0 /\ hash.packet_id = expected
    /\ IF hash.lasts = "ends" THEN last_ends ELSE Highest <= hash.serial
IsSaved(call) == ~Recorded(call) /\ call[3] = last /\ payload[call[4]] = 0

Save(call) ==
    LET w == call[1]
        n == call[2]
        id == call[4]
        is_ours == IsOurs(call[3])
        proven == IF is_ours THEN hash.delivered ELSE Delivered
        highest == IF Waiting # {} THEN Highest ELSE IF hash.serial > 0 THEN hash.serial ELSE last
        next == IF is_ours THEN hash.serial + 1 ELSE Max({highest, hash.serial, hash.delivered}) + 1
        ends == Waiting = {} \/ (is_ours /\ hash.lasts = "ends")
        same == records[w][1] = Batch(n)
    IN
    IF ~IsSaved(call) THEN UNCHANGED stored
    ELSE
    /\ payload' = [payload EXCEPT ![id] = arrived + 1]
    /\ serial' = [serial EXCEPT ![id] = next]
    /\ last' = id
    /\ last_ends' = ends
    /\ set_ends' = IF ends THEN TRUE ELSE IF hash.lasts = "never" THEN set_ends ELSE proven > 0
    /\ hash' = [serial |-> next, packet_id |-> id, lasts |-> IF ends THEN "ends" ELSE "never",
                delivered |-> proven, at |-> IF is_ours THEN hash.at ELSE Nothing]
    /\ records' = [records EXCEPT ![w] = <<Batch(n), IF same THEN @[2] \union {n} ELSE {n}>>]
    /\ arrived' = arrived + 1
    /\ ours' = Append(ours, <<w, n>>)
    /\ owed' = owed \union {arrived + 1}

(* The writer's next call. It passes over the packet ids that were refused as in use. *)
Call(w) == <<w, done[w] + 1, known[w], After(known[w], passed[w] + 1)>>
IsAtWork(w) == done[w] < Batches * Calls /\ w \notin must_trim

(* The server carries the call out, and the writer is told. *)
Try(w) ==
    /\ IsAtWork(w)
    /\ Save(Call(w))
    /\ LET is_told == IsSaved(Call(w)) \/ Recorded(Call(w))
           is_in_use == ~is_told /\ known[w] = last
           is_full == is_in_use /\ passed[w] = Ids - 1
       IN
        /\ done' = [done EXCEPT ![w] = IF is_told THEN @ + 1 ELSE @]
        /\ known' = [known EXCEPT ![w] = last']
        /\ passed' = [passed EXCEPT ![w] = IF is_in_use /\ ~is_full THEN @ + 1 ELSE 0]
        /\ must_trim' = IF is_full \/ (is_told /\ Cardinality(Waiting') > Limit)
                        THEN must_trim \union {w} ELSE must_trim
    /\ UNCHANGED <<late, losses, sent>>

(* The writer gives a call up, and will repeat it. *)
Lose(w) ==
    /\ IsAtWork(w) /\ losses < Losses
    /\ late' = late \union {Call(w)}
    /\ losses' = losses + 1
    /\ UNCHANGED <<stored, known, passed, done, must_trim, sent>>

Arrive ==
    /\ \E call \in late : Save(call) /\ late' = late \ {call}
    /\ UNCHANGED <<known, passed, done, must_trim, losses, sent>>

(* trim_messages: the oldest of what was not sent, then the oldest of what was. *)
First(S, most) == {i \in S : Cardinality({j \in S : serial[j] <= serial[i]}) <= most}
Spare ==
    LET most == IF Cardinality(Waiting) > Limit THEN Cardinality(Waiting) - Limit ELSE 0
        new == First({i \in Waiting : serial[i] > Delivered}, most)
    IN new \union First(Waiting \ new, most - Cardinality(new))
Remove(going) ==
    /\ Ends(going, serial')
    /\ payload' = [i \in 1..Ids |-> IF i \in going THEN 0 ELSE payload[i]]
    /\ owed' = owed \ {payload[i] : i \in going}
    /\ UNCHANGED <<last, last_ends, hash, records, arrived, ours>>

Trim(w) ==
    /\ w \in must_trim
    /\ Remove(Spare)
    /\ must_trim' = must_trim \ {w}
    /\ UNCHANGED <<set_ends, known, passed, done, late, losses, sent>>

(* ack, or TBMQ's: a client acknowledges in order. The set goes with its last member. *)
Ack ==
    /\ \E i \in Waiting :
        /\ payload[i] <= sent /\ \A j \in Waiting : serial[i] <= serial[j]
        /\ Remove({i})
        /\ set_ends' = (set_ends /\ Waiting # {i})
    /\ UNCHANGED <<known, passed, done, must_trim, late, losses, sent>>

(* mark_delivered: what waits is sent to the client, all or the first page of it. *)
DeliverUpTo(upto) ==
    /\ Waiting # {} /\ Delivered < upto
    /\ sent' = Max({sent} \union {payload[i] : i \in {i \in Waiting : serial[i] <= upto}})
    /\ hash' = [hash EXCEPT
        !.delivered = upto,
        !.serial = IF @ > 0 /\ upto > @ THEN upto ELSE @,
        !.at = IF hash.serial > 0 /\ hash.packet_id = last THEN Nothing ELSE <<last, Highest>>]
    /\ set_ends' = TRUE
    /\ UNCHANGED <<payload, serial, last, last_ends, records, arrived, ours, owed, known, passed, done, must_trim, late, losses>>
Deliver == \E i \in Waiting : DeliverUpTo(serial[i])

(* TBMQ adds a message, and removes what is over the limit. It would overwrite what waits under its packet id. *)
Add ==
    LET id == After(last, 1)
        scored == [serial EXCEPT ![id] = IF Waiting = {} THEN last + 1 ELSE Highest + 1]
        going == Oldest(Waiting \union {id}, scored, Limit)
    IN
    /\ Added < Theirs /\ payload[id] = 0
    /\ serial' = [i \in 1..Ids |-> IF i \in going THEN 0 ELSE scored[i]]
    /\ payload' = [i \in 1..Ids |-> IF i \in going THEN 0 ELSE IF i = id THEN arrived + 1 ELSE payload[i]]
    /\ owed' = (owed \ {payload[i] : i \in going}) \union {arrived + 1}
    /\ last' = id /\ last_ends' = FALSE
    /\ arrived' = arrived + 1
    /\ UNCHANGED <<set_ends, hash, records, ours, known, passed, done, must_trim, late, losses, sent>>

Next == Arrive \/ Ack \/ Deliver \/ Add \/ \E w \in Writers : Try(w) \/ Lose(w) \/ Trim(w)

(* Writers go on; everything else may happen or not. *)
Fairness == \A w \in Writers : WF_vars(Try(w)) /\ WF_vars(Trim(w))

Spec == Init /\ [][Next]_vars /\ Fairness

(* What neither the client nor a limit has ended is stored, and found by the set. What was confirmed had arrived. *)
NothingIsLost ==
    /\ owed = {payload[i] : i \in Waiting} /\ Cardinality(owed) = Cardinality(Waiting)
    /\ \A i \in 1..Ids : payload[i] > 0 <=> serial[i] > 0
    /\ \A w \in Writers : LET came == {each[2] : each \in Range(Of(w))} IN 1..done[w] \subseteq came

(* No message is stored twice, and those of a writer come in its order. *)
OnceInOrder == \A w \in Writers : LET of == Of(w) IN \A k \in 2..Len(of) : of[k - 1][2] < of[k][2]

(* Serials give the order of arrival, over laps and whoever saved; and TBMQ goes on behind the newest message. *)
SerialsAreInOrder ==
    /\ \A i, j \in Waiting : payload[i] < payload[j] <=> serial[i] < serial[j]
    /\ \A i \in Waiting : payload[i] = arrived => last = i

(* DUP is set only for what was sent before, and for all of it while TBMQ stays away. *)
DupIsTrue ==
    LET flagged == {payload[i] : i \in {i \in Waiting : serial[i] <= Delivered}}
        was_sent == {n \in owed : n <= sent}
    IN flagged \subseteq was_sent /\ (Added = 0 => flagged = was_sent)

(* A message more than the limit for each writer that has yet to hear of it, or to trim. *)
LimitIsKept == Cardinality(Waiting) <= Limit + Cardinality({w \in Writers : w \in must_trim \/ Recorded(Call(w))})

(* A batch that is sent again for long enough is acknowledged. *)
EverythingIsTold == \A w \in Writers : <>(done[w] = Batches * Calls)
=============================================================================
