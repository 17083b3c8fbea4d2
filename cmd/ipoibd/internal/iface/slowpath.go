package iface

import (
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

// slowItems bounds the items waiting for the slow path in one queue. Each direction has
// its own queue, so that a flood from the fabric does not crowd out the host's frames; so
// have the guests, and the peers that the host uses, so that a flood of others does not delay them.
const slowItems = 512

// slowItem is a copy of a frame from the host or of a message from the fabric.
type slowItem struct {
	data []byte
	from ud.Sender // only of a message
}

// slowQueue is bounded and reuses its buffers. The data path calls put; the owner receives
// from ready and calls done.
type slowQueue struct {
	free, ready chan *slowItem
}

func newSlowQueue() slowQueue {
	q := slowQueue{free: make(chan *slowItem, slowItems), ready: make(chan *slowItem, slowItems)}
	for range slowItems {
		q.free <- new(slowItem)
	}
	return q
}

func (q slowQueue) put(data []byte, from ud.Sender) bool {
	select {
	case it := <-q.free:
		it.data, it.from = append(it.data[:0], data...), from
		q.ready <- it // never blocks, because there are as many places as items
		return true
	default:
		return false
	}
}

func (q slowQueue) done(it *slowItem) { q.free <- it }

// slowPath is the queues, as the data path uses them.
type slowPath struct {
	host   slowQueue // frames of the host itself
	guests slowQueue // those of the stations behind ib0
	first  slowQueue // messages from peers in use
	fabric slowQueue // those of others
	known  *ud.Snapshot
	peers  senders // in use, by queue pair
	ports  senders // by port
}

func newSlowPath(known *ud.Snapshot) slowPath {
	return slowPath{
		host: newSlowQueue(), guests: newSlowQueue(), first: newSlowQueue(), fabric: newSlowQueue(), known: known,
		peers: newSenders(peerRate, peerBurst), ports: newSenders(senderRate, senderBurst),
	}
}

// FromHost implements ud.SlowPath.
func (s slowPath) FromHost(frame []byte) bool {
	if known := s.known.Load(); known != nil && !known.IsHost(ipoib.MAC(frame[6:])) {
		return s.guests.put(frame, ud.Sender{})
	}
	return s.host.put(frame, ud.Sender{})
}

// FromFabric implements ud.SlowPath. What a peer in use sends beyond its own bound is treated as a stranger's, so
// someone who forges its address takes away no more than that precedence.
func (s slowPath) FromFabric(msg []byte, from ud.Sender) ud.Reason {
	switch {
	case s.inUse(from) && s.peers.allow(from.Key()) && s.first.put(msg, from):
		return ud.SlowPathed
	case !s.ports.allow(from.Port()):
		return ud.SlowPathLimit
	case !s.fabric.put(msg, from):
		return ud.SlowPathFull
	}
	return ud.SlowPathed
}

func (s slowPath) inUse(from ud.Sender) bool {
	known := s.known.Load()
	return known != nil && known.InUse(from.UDSource)
}
