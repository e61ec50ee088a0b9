------------------------------ MODULE FanoutLog ------------------------------
(* A fan-out queue with one log that its consumers read.

   Each action is one call of a script, which the server carries out as a whole; a worker is told what it did, or dies
   before that. The name of the script stands above each action. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Consumers,
    Workers,
    Messages, \* their numbers: 1..Messages
    Deaths,   \* so many workers are killed, or end, at work
    Lapses    \* so many leases run out while their worker lives

VARIABLES
    published,  \* number of messages so far, which is also the number that the log has reached
    log,        \* numbers of the log's entries, one for each message
    payloads,   \* messages whose payload is stored
    references, \* message -> how many consumers owe an acknowledgement
    members,    \* registered consumers
    cursor,     \* consumer -> number up to which it has read the log
    ready,      \* consumer -> messages in its own list, the next one first
    leases,     \* consumer -> leased messages, each with the token of its claim
    tokens,     \* number of claims so far
    at_work,    \* worker -> consumer, token and message of its claim, or Nothing
    deaths, lapses,
    owed        \* consumer -> messages that were published for it and that it has not acknowledged: what has to be true

vars == <<published, log, payloads, references, members, cursor, ready, leases, tokens, at_work, deaths, lapses, owed>>

Nothing == <<>>
Range(s) == {s[i] : i \in DOMAIN s}
Min(S) == CHOOSE n \in S : \A m \in S : n <= m
Unread(c) == {n \in log : n > cursor[c]}
Leased(c) == {lease[1] : lease \in leases[c]}
IsAtWork(c, lease) == \E w \in Workers : at_work[w] = <<c, lease[2], lease[1]>>

Init ==
    /\ published = 0 /\ tokens = 0 /\ deaths = 0 /\ lapses = 0
    /\ log = {} /\ payloads = {} /\ members = {}
    /\ references = [n \in 1..Messages |-> 0]
    /\ cursor = [c \in Consumers |-> 0]
    /\ ready = [c \in Consumers |-> <<>>]
    /\ leases = [c \in Consumers |-> {}]
    /\ owed = [c \in Consumers |-> {}]
    /\ at_work = [w \in Workers |-> Nothing]

(* register: a consumer begins with what is published from now on. *)
Register(c) ==
    /\ c \notin members
    /\ members' = members \union {c}
    /\ cursor' = [cursor EXCEPT ![c] = published]
    /\ UNCHANGED <<published, log, payloads, references, ready, leases, tokens, at_work, deaths, lapses, owed>>

(* publish: payload, count and entry are written at once. *)
Publish ==
    /\ published < Messages /\ members # {}
    /\ published' = published + 1
    /\ log' = log \union {published + 1}
    /\ payloads' = payloads \union {published + 1}
    /\ references' = [references EXCEPT ![published + 1] = Cardinality(members)]
    /\ owed' = [c \in Consumers |-> IF c \in members THEN owed[c] \union {published + 1} ELSE owed[c]]
    /\ UNCHANGED <<members, cursor, ready, leases, tokens, at_work, deaths, lapses>>

(* claim: the next message is leased, out of the list or else out of the log, whose entries go once all have read them. *)
Claim(c, w) ==
    /\ c \in members /\ at_work[w] = Nothing
    /\ ready[c] # <<>> \/ Unread(c) # {}
    /\ LET is_listed == ready[c] # <<>>
           n == IF is_listed THEN Head(ready[c]) ELSE Min(Unread(c))
           read_to == [cursor EXCEPT ![c] = IF is_listed THEN @ ELSE n]
       IN
        /\ ready' = [ready EXCEPT ![c] = IF is_listed THEN Tail(@) ELSE @]
        /\ cursor' = read_to
        /\ log' = {entry \in log : \E other \in members : entry > read_to[other]}
        /\ leases' = [leases EXCEPT ![c] = @ \union {<<n, tokens + 1>>}]
        /\ at_work' = [at_work EXCEPT ![w] = <<c, tokens + 1, n>>]
    /\ tokens' = tokens + 1
    /\ UNCHANGED <<published, payloads, references, members, deaths, lapses, owed>>

(* claim, too: a lease that has run out brings its message back to the head of the list. *)
Reclaim(c) ==
    /\ \E lease \in leases[c] :
        /\ lapses' = IF IsAtWork(c, lease) THEN lapses + 1 ELSE lapses
        /\ lapses' <= Lapses
        /\ ready' = [ready EXCEPT ![c] = <<lease[1]>> \o @]
        /\ leases' = [leases EXCEPT ![c] = @ \ {lease}]
    /\ UNCHANGED <<published, log, payloads, references, members, cursor, tokens, at_work, deaths, owed>>

(* ack: counts only while the lease has this token, so that it makes no difference whether the worker hears the answer,
   and repeats the call. The last consumer frees the payload. *)
Ack(w) ==
    /\ at_work[w] # Nothing
    /\ LET c == at_work[w][1]
           token == at_work[w][2]
           n == at_work[w][3]
           counts == <<n, token>> \in leases[c]
       IN
        /\ references' = [references EXCEPT ![n] = IF counts /\ @ > 0 THEN @ - 1 ELSE @]
        /\ payloads' = IF references'[n] = 0 THEN payloads \ {n} ELSE payloads
        /\ leases' = [leases EXCEPT ![c] = @ \ {<<n, token>>}]
        /\ owed' = [owed EXCEPT ![c] = IF <<n, token>> \in leases[c] THEN @ \ {n} ELSE @]
        \* A reply that is lost is asked for again.
        /\ \/ at_work' = [at_work EXCEPT ![w] = Nothing] /\ deaths' = deaths
           \/ at_work' = at_work /\ deaths < Deaths /\ deaths' = deaths + 1
    /\ UNCHANGED <<published, log, members, cursor, ready, tokens, lapses>>

(* claim, too: what the log has up to a number goes to the consumer's list: all for a consumer that takes one message at a
   time, else the rest of what was published in one call. *)
Pull(c, n) ==
    /\ c \in members /\ n \in Unread(c)
    /\ ready' = [ready EXCEPT ![c] = @ \o SelectSeq([m \in 1..n |-> m], LAMBDA m : m \in Unread(c))]
    /\ cursor' = [cursor EXCEPT ![c] = n]
    /\ log' = {entry \in log : \E other \in members : entry > cursor'[other]}
    /\ UNCHANGED <<published, payloads, references, members, leases, tokens, at_work, deaths, lapses, owed>>

(* return_claimed: a worker that ends in good order gives back what it has not begun; that is next in line. *)
Return(w) ==
    /\ at_work[w] # Nothing /\ deaths < Deaths
    /\ LET c == at_work[w][1]
           lease == <<at_work[w][3], at_work[w][2]>>
       IN
        /\ leases' = [leases EXCEPT ![c] = @ \ {lease}]
        /\ ready' = [ready EXCEPT ![c] = IF lease \in leases[c] THEN <<lease[1]>> \o @ ELSE @]
    /\ at_work' = [at_work EXCEPT ![w] = Nothing]
    /\ deaths' = deaths + 1
    /\ UNCHANGED <<published, log, payloads, references, members, cursor, tokens, lapses, owed>>

(* A worker is killed: the server is told nothing. *)
Die(w) ==
    /\ at_work[w] # Nothing /\ deaths < Deaths
    /\ at_work' = [at_work EXCEPT ![w] = Nothing]
    /\ deaths' = deaths + 1
    /\ UNCHANGED <<published, log, payloads, references, members, cursor, ready, leases, tokens, lapses, owed>>

(* unregister: the consumer leaves, and what it owes is released. *)
Unregister(c) ==
    /\ c \in members
    /\ members' = members \ {c}
    /\ LET going == Range(ready[c]) \union Leased(c) \union Unread(c)
       IN references' = [n \in 1..Messages |-> IF n \in going THEN references[n] - 1 ELSE references[n]]
    /\ payloads' = {n \in payloads : references'[n] > 0}
    /\ log' = {entry \in log : \E other \in members' : entry > cursor[other]}
    /\ ready' = [ready EXCEPT ![c] = <<>>]
    /\ leases' = [leases EXCEPT ![c] = {}]
    /\ owed' = [owed EXCEPT ![c] = {}]
    /\ UNCHANGED <<published, cursor, tokens, at_work, deaths, lapses>>

Next ==
    \/ Publish
    \/ \E c \in Consumers :
        Register(c) \/ Unregister(c) \/ Reclaim(c) \/ (\E n \in log : Pull(c, n)) \/ \E w \in Workers : Claim(c, w)
    \/ \E w \in Workers : Ack(w) \/ Return(w) \/ Die(w)

(* Workers go on claiming and acknowledging, for every consumer; everything else may happen or not. *)
Fairness ==
    /\ \A c \in Consumers : WF_vars(Reclaim(c)) /\ SF_vars(\E w \in Workers : Claim(c, w))
    /\ \A w \in Workers : WF_vars(Ack(w))

Spec == Init /\ [][Next]_vars /\ Fairness

(* What a consumer is owed waits in exactly one place: in the log behind its cursor, in its list, or under a lease. *)
NothingIsLost ==
    \A c \in members :
        /\ owed[c] = Unread(c) \union Range(ready[c]) \union Leased(c)
        /\ Cardinality(owed[c]) = Cardinality(Unread(c)) + Len(ready[c]) + Cardinality(leases[c])

(* A payload is there as long as somebody owes an acknowledgement, and no longer. *)
PayloadsAreKept ==
    /\ payloads = UNION {owed[c] : c \in members}
    /\ \A n \in 1..Messages : references[n] = Cardinality({c \in members : n \in owed[c]})

(* The log has nothing that all have read. *)
LogIsShort == \A n \in log : \E c \in members : n > cursor[c]

(* What is owed does not stay so for ever. *)
EverythingArrives == \A c \in Consumers, n \in 1..Messages : n \in owed[c] ~> n \notin owed[c]
=============================================================================
