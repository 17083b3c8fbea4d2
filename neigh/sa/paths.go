package sa

import "container/list"

// paths are the cache of the port, least recently wanted first.
type paths struct {
	step     *step
	port     *port
	requests *requests
	most     int

	byKey  map[PathKey]*path
	asked  list.List // of *path, with a request
	others list.List // of *path, without one
	epoch  uint64    // counts the events that make paths stale
}

func (ps *paths) init(s *step, p *port, q *requests, most int) {
	ps.step, ps.port, ps.requests, ps.most, ps.byKey = s, p, q, most, make(map[PathKey]*path)
	ps.asked.Init()
	ps.others.Init()
}

// want answers from the cache if possible. A path that is not fresh is used, and asked for again.
func (ps *paths) want(key PathKey) {
	if why := ps.port.trouble(); why != ReasonNone {
		ps.step.emit(PathFailed{Key: key, Reason: why})
		return
	}
	p := ps.get(key)
	if p == nil {
		ps.step.emit(PathFailed{Key: key, Reason: ReasonLimit})
		return
	}
	if p.req.state == requestIdle {
		ps.others.MoveToBack(p.place)
	}
	switch {
	case p.again: // the answer is awaited
	case p.known:
		ps.step.emit(PathFound{Key: key, Path: p.path})
		if !p.fresh() {
			ps.ask(p)
		}
	case p.why.reason != ReasonNone && ps.step.now.Sub(p.got) < failedLife:
		ps.step.emit(PathFailed{key, p.why.reason, p.why.status})
	default:
		if !ps.ask(p) {
			ps.step.emit(PathFailed{Key: key, Reason: ReasonLimit})
		}
	}
}

// refresh asks for a path again. If that has just been done, it answers from the cache.
func (ps *paths) refresh(key PathKey) {
	p := ps.byKey[key]
	if p == nil || !p.known || !ps.port.usable() || p.req.state == requestIdle && ps.step.now.Sub(p.queued) < refreshPause {
		ps.want(key)
		return
	}
	if p.again = ps.ask(p); !p.again {
		ps.step.emit(PathFailed{Key: key, Reason: ReasonLimit})
	}
}

// get returns the entry of a key. It makes one in place of the one that was wanted longest ago, or returns nil if all
// are being asked for.
func (ps *paths) get(key PathKey) *path {
	if p := ps.byKey[key]; p != nil {
		return p
	}
	if len(ps.byKey) >= ps.most {
		oldest := ps.others.Front()
		if oldest == nil {
			return nil
		}
		ps.remove(oldest.Value.(*path))
		ps.step.stats.PathsEvicted++
	}
	p := &path{of: ps, key: key}
	p.req.subject = p
	p.place = ps.others.PushBack(p)
	ps.byKey[key] = p
	return p
}

// ask begins a query, unless there is one. It returns false if there are too many.
func (ps *paths) ask(p *path) bool {
	if p.req.state != requestIdle {
		return true
	}
	if ps.asked.Len() >= maxPathQueries {
		return false
	}
	ps.others.Remove(p.place)
	p.place, p.queued, p.asking = ps.asked.PushBack(p), ps.step.now, ps.epoch
	p.req.until = ps.step.now.Add(pathLife - slotTime)
	ps.requests.start(&p.req, ps.step.now)
	return true
}

// becomeOther moves an entry whose request has ended.
func (ps *paths) becomeOther(p *path) {
	ps.asked.Remove(p.place)
	p.place, p.again = ps.others.PushBack(p), false
}

func (ps *paths) remove(p *path) {
	ps.others.Remove(p.place)
	delete(ps.byKey, p.key)
}

// restart forgets all paths, and begins the queries that are under way once more.
func (ps *paths) restart() {
	for ps.others.Len() > 0 {
		ps.remove(ps.others.Front().Value.(*path))
	}
	for e := ps.asked.Front(); e != nil; e = e.Next() {
		p := e.Value.(*path)
		p.known, p.path = false, Path{}
		ps.requests.cancel(&p.req)
		ps.requests.start(&p.req, ps.step.now)
	}
}

// reset forgets all paths, and ends the queries that are under way.
func (ps *paths) reset(why Reason) {
	for e := ps.asked.Front(); e != nil; e = ps.asked.Front() {
		p := e.Value.(*path)
		ps.requests.cancel(&p.req)
		ps.becomeOther(p)
		ps.step.emit(PathFailed{Key: p.key, Reason: why})
	}
	ps.restart()
}
