package iface

import (
	"ipoibd/ud"
)

// slowItems bounds what waits for the slow path in one direction. A flood from
// the fabric must not keep the host's own frames out, so each has its own.
const slowItems = 512

// slowItem is a frame of the host or a message of the fabric, copied.
type slowItem struct {
	data []byte
	from ud.Sender // of a message
}

// slowQueue is bounded and reuses its buffers: put on the data path, take and
// done on the owner's goroutine.
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
		q.ready <- it // there is room: as many items as places
		return true
	default:
		return false
	}
}

func (q slowQueue) done(it *slowItem) { q.free <- it }

// slowPath is what the data path sees of the two queues.
type slowPath struct{ host, fabric slowQueue }

func newSlowPath() slowPath { return slowPath{newSlowQueue(), newSlowQueue()} }

// FromHost implements ud.SlowPath.
func (s slowPath) FromHost(frame []byte) bool { return s.host.put(frame, ud.Sender{}) }

// FromFabric implements ud.SlowPath.
func (s slowPath) FromFabric(msg []byte, from ud.Sender) bool { return s.fabric.put(msg, from) }
