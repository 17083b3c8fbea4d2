package neigh

import "time"

// publisher decides when the data path gets a new snapshot: at most once per
// Step, and for changes that the slow path can bridge no earlier than the last
// one allows, so that a flood of new peers does not cost a rebuild each.
type publisher struct {
	epoch uint64    // of the last snapshot; 0: there was none
	dirty bool      // something has changed since
	rush  bool      // and what the data path has is wrong
	pause time.Time // its end
	late  time.Time // the changes can wait until this time; zero: they cannot wait
}

// change notes a change without which the data path still works.
func (p *publisher) change() { p.dirty, p.late = true, time.Time{} }

// changeBy notes a change that can wait until a time. An earlier change that is still
// unpublished keeps its own time.
func (p *publisher) changeBy(at time.Time) {
	if !p.dirty {
		p.dirty, p.late = true, at
	}
}

// needed notes that the noted changes cannot wait any longer.
func (p *publisher) needed() { p.late = time.Time{} }

// urgent notes a change without which the data path would do wrong.
func (p *publisher) urgent() { p.dirty, p.rush = true, true }

// next returns when a snapshot is due, zero when nothing has changed.
func (p *publisher) next() time.Time {
	if !p.dirty {
		return time.Time{}
	}
	if p.late.After(p.pause) {
		return p.late
	}
	return p.pause
}

func (p *publisher) due(now time.Time) bool {
	return p.dirty && (p.rush || !p.next().After(now))
}

// publish publishes a snapshot if one is due.
func (t *Table) publish() {
	if !t.pub.due(t.now) {
		return
	}
	pause := time.Duration(len(t.peers.byEndpoint)) * publishPause
	t.pub = publisher{epoch: t.pub.epoch + 1, pause: t.now.Add(pause)}
	t.emit(Publish{t.snapshot()})
}
