package iface

import "ipoibd/ud"

// slowItems bounds the items waiting for the slow path in one direction. Each direction has
// its own queue, so that a flood from the fabric does not crowd out the host's frames.
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

// slowPath is the pair of queues, as the data path uses it.
type slowPath struct {
	host, fabric slowQueue
	senders      senders
}

func newSlowPath() slowPath { return slowPath{newSlowQueue(), newSlowQueue(), newSenders()} }

// FromHost implements ud.SlowPath.
func (s slowPath) FromHost(frame []byte) bool { return s.host.put(frame, ud.Sender{}) }

// FromFabric implements ud.SlowPath.
func (s slowPath) FromFabric(msg []byte, from ud.Sender) ud.Reason {
	switch {
	case !s.senders.allow(from.GID):
		return ud.SlowPathLimit
	case !s.fabric.put(msg, from):
		return ud.SlowPathFull
	}
	return ud.SlowPathed
}
