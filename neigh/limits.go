package neigh

import "time"

// Bounds. Whatever strangers or the host do, memory stays within their product.
const (
	// DefaultMaxPeers bounds the peers, as the default gc_thresh3 of the kernel's
	// neighbour table does (1024), times four: one interface serves a rack.
	DefaultMaxPeers = 4096
	// DefaultMaxHeard bounds those of them that the host never sent data to. Any
	// stranger can make one, by a single message.
	DefaultMaxHeard = 1024
	// maxPeersPerGID bounds the peers of one GID, of both classes. A host has an
	// interface for each container, 110 on a Kubernetes node by default, and some for
	// partitions. A stranger that invents queue pairs at one GID pushes out only peers
	// of that GID. It can occupy this many places of the table, and no more handles:
	// the sixteenth part of DefaultMaxPeers.
	maxPeersPerGID = 256
	// maxIPsUsed and maxIPsHeard bound the addresses bound to one peer of each
	// class: a router or a bridge of containers has a dozen, a stranger gets the
	// usual four (IPv4, link-local, global, temporary).
	maxIPsUsed  = 16
	maxIPsHeard = 4
	// maxPeerFrames bounds the frames kept for one destination: an initial TCP
	// window (10 segments) for a few connections.
	maxPeerFrames = 64
	// maxKeptBytes bounds all the kept frames of the interface, in bytes.
	maxKeptBytes = 1 << 20
	// maxResolutions bounds the addresses being asked for at a time.
	maxResolutions = 256
	// maxAnswerAHs bounds the handles under way when one is asked for only to
	// answer a stranger, by ARP, ND or a notice, so that a flood of strangers cannot
	// keep the worker from the handles of honest peers.
	maxAnswerAHs = 64
	// maxAskedIPs bounds the addresses by which one silent peer is asked for, the
	// latest claim first: one answer is enough.
	maxAskedIPs = 4
	// maxAskRate bounds the messages per second that ask for silent peers. Each goes
	// to the whole group, and a failed switch can silence many peers at once.
	maxAskRate = 16
	// maxNoticeIPs bounds the addresses announced to one sender of stray datagrams:
	// as many as it may have bound to our former queue pair (maxIPsUsed).
	maxNoticeIPs = maxIPsUsed
	// maxNoticeRate bounds the senders of stray datagrams that are answered per
	// second. Anyone can forge such datagrams, so the answers must stay few: with
	// maxNoticeIPs they are 256 short messages a second at most.
	maxNoticeRate = 16
	// maxNoticeRatePerGID bounds those at one GID, since a stranger can invent queue
	// pairs there: only a few interfaces of a host send at the same time.
	maxNoticeRatePerGID = 4
	// maxNoticed bounds the senders of stray datagrams whose pauses are remembered. It
	// is as many as maxNoticeRate admits until the pauses of the first start over.
	maxNoticed = maxNoticeRate * int(2*maxNoticePause/time.Second+2)
	// maxLearntIPs bounds the host addresses learnt from its own messages.
	maxLearntIPs = 64
	// maxHostAddrs bounds the host addresses taken from netlink.
	maxHostAddrs = 256
	// maxHostAsks bounds the addresses asked for at once in the host's name; its
	// own requests are a second apart, and it gives each address up after three.
	maxHostAsks = 256
	// maxUrgentReturns bounds how many peers per second that came back are published
	// at once. A stranger can forge such returns, and each costs a snapshot. Further
	// ones wait for latePause.
	maxUrgentReturns = 16
	// maxHints bounds the entries of the kernel's cache that are taken as hints, as
	// DefaultMaxPeers does.
	maxHints = 4096
	// maxRehashes bounds the rehashes of a QPN that are tried one after the other. More
	// than one is taken only where peers moved away from that QPN with their MACs.
	maxRehashes = 4
	// maxPromotions bounds how many used entries one eviction may pass over
	// before it takes whatever is oldest: a step's cost must stay constant.
	maxPromotions = 8
)

// Times.
const (
	// usedIdle is how long a peer is kept that the host sends nothing to: longer
	// than the kernel's own gc_stale_time (60 s) and base_reachable_time, so that
	// its cache seldom outlives ours.
	usedIdle = 10 * time.Minute
	// pressureIdle replaces usedIdle while the used class is full.
	pressureIdle = time.Minute
	// heardIdle is how long a peer is kept that only spoke, or whose addresses are
	// elsewhere now: longer than the interval at which Linux asks again for an idle
	// neighbour (60 s).
	heardIdle = 2 * time.Minute
	// sweepInterval is the resolution of the idle times.
	sweepInterval = 15 * time.Second
	// lookInterval is how often the marks of the data path are read: the resolution
	// of silenceLimit. At DefaultMaxPeers it costs well below 1 % of a processor.
	lookInterval = 250 * time.Millisecond
	// silenceLimit is how long a used peer may be silent while the host sends to it
	// before the table asks for it: longer than any round trip on a fabric.
	silenceLimit = time.Second
	// askPause is the pause after the first question, doubled for each next one up to
	// maxAskPause. So a one-way flow costs one question per maxAskPause.
	askPause    = 2 * time.Second
	maxAskPause = time.Minute
	// noticePause is the pause after the first notice to a sender of stray
	// datagrams, doubled for each next one up to maxNoticePause.
	noticePause    = time.Second
	maxNoticePause = 30 * time.Second
	// publishPause is the pause after a snapshot, for each peer in the table: some
	// 20 times as long as it took to make (BenchmarkSnapshot), 10 ms at
	// DefaultMaxPeers. So among few peers a new handle is known to the data path at
	// once, before frames for it fill the slow path.
	publishPause = 2500 * time.Nanosecond

	// latePause is how long a snapshot may wait that the data path does not need at
	// once: for the handle of a peer to which the host sends no data, for a handle that
	// is given back, for a peer with a rehashed MAC that comes or goes, and for a peer that
	// came back after maxUrgentReturns others. So a flood of strangers costs 20 snapshots a
	// second, or 36 with maxUrgentReturns.
	latePause = 50 * time.Millisecond

	// resolveInterval and resolveTries: RETRANS_TIMER and MAX_MULTICAST_SOLICIT
	// of RFC 4861 section 10.
	resolveInterval = time.Second
	resolveTries    = 3
	// correctInterval bounds how often the host is told that an address is at
	// another MAC than the one that it uses.
	correctInterval = time.Second

	// ahBackoff is the pause before the first retry of a handle, doubled for
	// each next one; ahTries includes the first try.
	ahBackoff = time.Second
	ahTries   = 3
	// ahHoldoff is how long a peer whose handle failed for good is left alone: a
	// handle can block the worker for about a second.
	ahHoldoff = 10 * time.Second

	// formerLife is how long messages of our former address are known as our own:
	// longer than a network holds a packet back. After it another QP of this host
	// may have that number.
	formerLife = 5 * time.Second

	// foreignMACSilence is after how long the MAC learnt behind ib0 may be
	// replaced or forgotten: the ageing time of a bridge (IEEE 802.1D, 300 s).
	foreignMACSilence = 300 * time.Second
)

// announceTimes are the times at which a new address is announced, counted from
// the change: at once, soon again in case the first announcement was lost, and later
// for members that joined the group after it (RFC 5227 section 2.3, RFC 4861 section
// 7.2.6 ask for 2 and 3 announcements). The last three outlast a fault of the underlay
// that drops multicast, such as a full neighbour table.
var announceTimes = [...]time.Duration{
	0, 250 * time.Millisecond, time.Second, 3 * time.Second,
	8 * time.Second, 20 * time.Second, time.Minute,
}

// Config bounds a table. The zero value stands for the defaults.
type Config struct {
	MaxPeers int // of both classes; at least 2
	MaxHeard int // of them heard only; 1 to MaxPeers-1
}

// normal returns c with defaults for what is not set, each bound within range.
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
