package neigh

import "time"

// Bounds. They limit memory regardless of what untrusted senders or the host
// do.
const (
	// DefaultMaxPeers bounds the peers. Either class has room for 10,000 interfaces of one
	// partition that all announce themselves, and for some that have restarted. A peer takes
	// less than 1 KiB (BenchmarkMemory).
	DefaultMaxPeers = 32768
	// DefaultMaxHeard bounds the heard peers among them. Anyone can add one with
	// a single message, and so occupy 32 MiB, including what is remembered of removed peers.
	DefaultMaxHeard = 16384
	// maxPeersPerGID bounds the peers of one GID, of both classes. A host has an
	// interface for each container, 110 on a Kubernetes node by default, and some for
	// partitions. An attacker that invents queue pairs at one GID evicts only peers of
	// that GID. It can occupy at most this many entries and handles.
	maxPeersPerGID = 256
	// maxIPsUsed and maxIPsHeard bound the addresses of one peer of each class: a host with
	// guests has some hundred; a heard peer gets the usual four (IPv4, link-local, global,
	// temporary). While all peers have maxIPs addresses or more, maxIPsFew replaces maxIPsUsed.
	maxIPsUsed  = 256
	maxIPsFew   = 16
	maxIPsHeard = 4
	maxIPs      = 4 * DefaultMaxPeers
	// maxPeerFrames bounds the frames kept for one destination: an initial TCP
	// window (10 segments) for a few connections.
	maxPeerFrames = 64
	// maxKeptBytes bounds the total size of the kept frames in bytes.
	maxKeptBytes = 1 << 20
	// maxSoughtBytes is the same for frames of the fabric: those of the host, which anyone on the fabric could
	// displace otherwise, have the rest to themselves.
	maxSoughtBytes = maxKeptBytes / 2
	// maxResolutions bounds the addresses being resolved at a time.
	maxResolutions = 256
	// maxSoughtPerPeer bounds those that are sought behind ib0 for the packets of one peer.
	maxSoughtPerPeer = maxResolutions / 4
	// maxAnswerAHs bounds the outstanding handle requests beyond which no more are
	// made just to answer a heard peer, by ARP, ND or a notice. A flood of invented
	// peers therefore cannot keep the worker from creating handles for honest peers.
	maxAnswerAHs = 64
	// maxRenewals bounds the outstanding renewals of handles. On RoCE each may block a worker for some
	// seconds, because a peer that has fallen silent may be gone. It is half of the workers (package
	// device), so that new handles need not wait for renewals.
	maxRenewals = 2
	// maxClaims bounds the messages whose senders are not proven yet, and maxClaimsPerLID those of one port: only its
	// own claims have no room if a port invents GIDs. A host may announce some interfaces at the same time.
	maxClaims       = 1024
	maxClaimsPerLID = 64
	// maxClaimBytes bounds one of them in bytes: ARP, ND and DHCP are shorter. So one port fills an eighth of
	// maxSoughtBytes at most.
	maxClaimBytes = 1024
	// maxFindRate bounds the paths per second that are requested for the claims of one port. A port has one GID, or one
	// for each of its virtual functions.
	maxFindRate = 16
	// maxPaths bounds the paths beyond which claims cause no further ones. The peers need one for each GID, and
	// maxFindRate times sweepInterval are left for each of 100 ports that invent GIDs.
	maxPaths = 2 * DefaultMaxPeers
	// maxAskedIPs bounds the addresses requested for one silent peer, the latest
	// claim first: one answer is enough.
	maxAskedIPs = 4
	// maxAskRate bounds the requests per second for silent peers. Each goes to the
	// whole group, and a failed switch can silence many peers at once.
	maxAskRate = 16
	// maxNoticeIPs bounds the addresses announced to one sender of stray datagrams. The
	// sender asks for the others when they fall silent.
	maxNoticeIPs = 16
	// maxNoticeRate bounds the senders of stray datagrams that are answered per
	// second. Anyone can forge such datagrams, so answers must stay few: with
	// maxNoticeIPs, at most 256 short messages a second.
	maxNoticeRate = 16
	// maxNoticeRatePerGID bounds those at one GID, because an attacker can invent
	// queue pairs there; really only a few interfaces of a host send at the same
	// time.
	maxNoticeRatePerGID = 4
	// maxNoticed bounds the senders of stray datagrams whose pauses are remembered. It
	// is the number that maxNoticeRate admits until the pauses of the first start
	// over.
	maxNoticed = maxNoticeRate * int(2*maxNoticePause/time.Second+2)
	// maxEchoRate bounds the echo requests that are answered per second. An answer is as
	// long as its request and goes only to a known peer, so the requests of one host cannot
	// make this one send more than they cost.
	maxEchoRate = 1000
	// maxStations bounds the MACs behind ib0, maxIPsPerStation the addresses of each, and
	// maxStationIPs those of all: a bridge of containers and guests.
	maxStations      = 1024
	maxIPsPerStation = 32
	maxStationIPs    = 8192
	// maxGroupsPerStation bounds the IP multicast groups of each: a host has one for each of its IPv6 addresses, and
	// those of its programs.
	maxGroupsPerStation = 64
	// maxDHCPClients bounds the transactions of DHCP clients.
	maxDHCPClients = 1024
	// maxAbsent bounds the addresses that are remembered because no station has answered for them.
	maxAbsent = 1024
	// maxHostAddrs bounds the host addresses from netlink.
	maxHostAddrs = 256
	// maxHostAsks bounds the addresses requested at once in the host's name; the
	// host's own requests are a second apart, and it gives up after three.
	maxHostAsks = 256
	// maxUrgentReturns bounds how many moved peers per second are published at once.
	// Anyone can forge such moves, and each costs a snapshot. Further ones wait for
	// latePause.
	maxUrgentReturns = 16
	// maxHints bounds the entries of the kernel's cache that are used as hints,
	// like DefaultMaxPeers.
	maxHints = DefaultMaxPeers
	// maxRehashes bounds the rehashes of a QPN that are tried one after the other. More
	// than one is in use only if peers moved away from that QPN with their MACs.
	maxRehashes = 4
	// maxPromotions bounds how many active peers one eviction may pass over, so
	// that the cost of a step stays constant. Then it evicts the oldest heard
	// peer, or no used peer.
	maxPromotions = 8
)

// Times.
const (
	// usedIdle is how long an idle used peer is kept: longer than the kernel's
	// gc_stale_time (60 s) and base_reachable_time, so that the kernel's cache
	// seldom outlives ours.
	usedIdle = 10 * time.Minute
	// pressureIdle replaces usedIdle while the used class is full.
	pressureIdle = time.Minute
	// heardIdle is how long an idle peer is kept that is not used, or whose
	// addresses have moved elsewhere: longer than the interval at which Linux
	// verifies an idle neighbour (60 s).
	heardIdle = 2 * time.Minute
	// sweepInterval is the resolution of the idle times.
	sweepInterval = 15 * time.Second
	// markInterval is how often the marks of the data path are read: the resolution
	// of silenceLimit. With 10,000 busy peers this costs less than 1 % of a processor.
	markInterval = 250 * time.Millisecond
	// silenceLimit is how long a used peer may be silent while the host sends to it
	// before the table requests its addresses: longer than any round trip on a
	// fabric.
	silenceLimit = time.Second
	// askPause is the pause after the first requests for a silent peer; it doubles
	// each time, up to maxAskPause. So a one-way flow costs one round of requests per
	// maxAskPause.
	askPause    = 2 * time.Second
	maxAskPause = time.Minute
	// noticePause is the pause after the first notice to a sender of stray
	// datagrams; it doubles each time, up to maxNoticePause.
	noticePause    = time.Second
	maxNoticePause = 30 * time.Second
	// publishPause is the pause after a snapshot, and copyPause is added for each entry that
	// the snapshot copied: each about 10 times its cost (BenchmarkChange). So the data path
	// gets a new handle almost at once, before frames for it fill the slow path, and a flood
	// of changes takes a tenth of a processor.
	publishPause = 200 * time.Microsecond
	copyPause    = 4 * time.Microsecond

	// latePause is how long a snapshot may be delayed that the data path does not need at
	// once: for the handle of a peer to which the host sends no data, for a returned
	// handle, for a peer that becomes a used one, for a peer with a rehashed MAC that is
	// added or removed, and for a peer that moved after maxUrgentReturns others. A flood of
	// invented peers therefore costs 20 snapshots a second, or 36 with maxUrgentReturns.
	latePause = 50 * time.Millisecond

	// resolveInterval and resolveTries: RETRANS_TIMER and MAX_MULTICAST_SOLICIT
	// of RFC 4861 section 10.
	resolveInterval = time.Second
	resolveTries    = 3
	// correctInterval is the minimum interval between corrections of the host's
	// cache for one peer.
	correctInterval = time.Second

	// ahBackoff is the pause before the first retry of a handle; it doubles
	// each time. ahTries includes the first try.
	ahBackoff = time.Second
	ahTries   = 3
	// ahHoldoff is the pause after the last try for a handle failed, because
	// creating a handle can block the worker for about a second.
	ahHoldoff = 10 * time.Second

	// formerLife is how long messages from our former address count as our own:
	// longer than a network delays a packet. Afterwards another QP of this host
	// may have that number.
	formerLife = 5 * time.Second

	// renewPause is the minimum age of a handle that is renewed. With maxRenewals it bounds the renewals of
	// one peer; renewals of a peer that receives but never sends cost little.
	renewPause = 10 * time.Second

	// pathPause is how long the answer to a FindPath stands against claims that it does not prove: false ones, and those
	// of a port whose LID has just changed, which is refused until then.
	pathPause = 2 * time.Second

	// stationAge is how long a station behind ib0 must be silent before it is forgotten: the
	// ageing time of a bridge (IEEE 802.1D, 300 s).
	stationAge = 300 * time.Second
	// announceBatch addresses are announced at a time, announcePause apart: 8192 in 0.3 s.
	announceBatch = 256
	announcePause = 10 * time.Millisecond
	// doubtInterval and doubtTries: a peer that exists answers within milliseconds, if its machine is not busy.
	// One that is given up by mistake is found again by its addresses.
	doubtInterval = 100 * time.Millisecond
	doubtTries    = 3
	// seekInterval and seekTries: a station answers within microseconds, if its machine is not busy. After
	// a second the frames go to the fallback, as do those of the next absentFor.
	seekInterval = 333 * time.Millisecond
	seekTries    = 3
	absentFor    = time.Minute

	// queryInterval, queryIntervalFirst, otherQuerier and queryAnswer: Query Interval, Startup Query Interval, Other
	// Querier Present Interval and Query Response Interval of RFC 3376 section 8 and RFC 3810 section 9.
	queryInterval      = 125 * time.Second
	queryIntervalFirst = queryInterval / 4
	otherQuerier       = 255 * time.Second
	queryAnswer        = 10 * time.Second
	// queryDelay is the pause before the first query once ib0 and the queue pair are up.
	queryDelay = time.Second
	// ownAnswer is how long reports count as answers to our own query, which asks for them within a second.
	ownAnswer = 2 * time.Second
)

// announceTimes are the times at which a new address is announced, counted from the
// change: at once, soon again in case the first announcement was lost, and later for
// members that joined the group after it (RFC 5227 section 2.3, RFC 4861 section 7.2.6
// ask for 2 and 3 announcements). The last three are meant to outlast a fault of the
// underlay that drops multicast, such as a full neighbour table.
var announceTimes = [...]time.Duration{
	0, 250 * time.Millisecond, time.Second, 3 * time.Second,
	8 * time.Second, 20 * time.Second, time.Minute,
}

// Config configures a table. The zero value selects the defaults.
type Config struct {
	MaxPeers int // peers of both classes; at least 2
	MaxHeard int // heard peers among them; 1 to MaxPeers-1
	DHCP     DHCPForm
}

// normal returns c with unset fields replaced by defaults, and each bound
// within range.
func (c Config) normal() Config {
	if c.MaxPeers <= 0 {
		c.MaxPeers = DefaultMaxPeers
	}
	c.MaxPeers = max(c.MaxPeers, 2)
	if c.MaxHeard <= 0 {
		c.MaxHeard = min(DefaultMaxHeard, c.MaxPeers/2)
	}
	c.MaxHeard = min(c.MaxHeard, c.MaxPeers-1)
	return c
}

// most returns how many peers a class may have.
func (c Config) most(used bool) int {
	if used {
		return c.MaxPeers - c.MaxHeard
	}
	return c.MaxHeard
}
