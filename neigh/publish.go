package neigh

import "time"

// publisher decides when the data path gets a new snapshot: at most once per
// Step, and not before the last snapshot's pause is over for changes that the
// slow path can bridge. So a flood of new peers does not cost one snapshot per
// peer.
type publisher struct {
	epoch uint64    // of the last snapshot; 0 if there was none
	dirty bool      // there are unpublished changes
	rush  bool      // the data path's snapshot is wrong
	pause time.Time // end of the last snapshot's pause
	late  time.Time // the changes may wait until then; zero if they cannot wait
}

// change notes a change that the data path can do without for the length of a
// pause.
func (p *publisher) change() { p.dirty, p.late = true, time.Time{} }

// changeBy notes a change that may wait until the given time. The deadline of an
// earlier unpublished change stays in force.
func (p *publisher) changeBy(at time.Time) {
	if !p.dirty {
		p.dirty, p.late = true, at
	}
}

// needed records that the unpublished changes can no longer wait.
func (p *publisher) needed() { p.late = time.Time{} }

// urgent notes a change without which the data path would be wrong.
func (p *publisher) urgent() { p.dirty, p.rush = true, true }

// next returns when a snapshot is due, or zero if there are no changes.
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
	if !t.pub.due(t.step.now) {
		return
	}
	pause := publishPause + time.Duration(t.routes.copied+t.sources.copied)*copyPause
	t.pub = publisher{epoch: t.pub.epoch + 1, pause: t.step.now.Add(pause)}
	t.step.emit(Publish{t.snapshot()})
}
