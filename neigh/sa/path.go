package sa

import (
	"container/list"
	"time"

	"ipoibd/hca/mad"
)

// path is an entry of the cache.
//
//	known | asked | state
//	no    | yes   | the first answer is awaited; at its end PathFound or PathFailed
//	yes   | no    | in use; stale after an event or with age, and then asked for again when it is wanted
//	yes   | yes   | in use until the answer; without one it stays in use, stale, although PathFailed is reported
//	no    | no    | refused a moment ago
type path struct {
	of    *paths
	key   PathKey
	req   request
	place *list.Element // in paths.asked or paths.others

	known  bool
	path   Path
	got    time.Time // when the SA answered
	epoch  uint64    // of paths, when the query of that answer began
	asking uint64    // of paths, when the latest query began
	queued time.Time // when the latest query began
	again  bool      // the query under way is a refresh: the path so far answers no one
	why    failure   // of the latest refusal, while it is not known
}

func (p *path) urgent() bool { return false }

// put writes the query that Linux's IPoIB makes, with the SL if the key names one.
func (p *path) put(data []byte) (mad.Method, mad.Attribute, mad.Mask) {
	rec := mad.Path{
		DGID: p.key.DGID, SGID: p.of.port.view.GID, Routing: mad.Routing{Class: p.key.Class}, NumbPath: 1, PKey: p.key.PKey,
	}
	mask := mad.MaskPath
	if p.key.WithSL {
		rec.SL = p.key.SL
		mask |= mad.PathSL
	}
	rec.Put(data)
	return mad.MethodGet, mad.AttrPathRecord, mask
}

func (p *path) fits(data []byte) bool {
	var rec mad.Path
	return rec.Parse(data) == nil && rec.DGID == p.key.DGID
}

func (p *path) answered(s mad.Status, data []byte) {
	p.of.becomeOther(p)
	var rec mad.Path
	err := rec.Parse(data)
	switch {
	case s != mad.StatusOK:
		p.fail(pathReason(s), s)
	case err != nil || rec.Check() != nil:
		p.fail(ReasonBadAnswer, s)
	default:
		now := Path{DLID: rec.DLID, SL: rec.SL, MTU: rec.MTU.Value.MTU(), Rate: rec.Rate.Value, Routing: rec.Routing}
		changed := !p.known || p.path != now
		p.known, p.path, p.got, p.epoch, p.why = true, now, p.of.step.now, p.asking, failure{}
		p.of.step.emit(PathFound{p.key, now, changed})
	}
}

func (p *path) fail(why Reason, s mad.Status) {
	p.known, p.path, p.got, p.why = false, Path{}, p.of.step.now, failure{reason: why, status: s}
	p.of.step.emit(PathFailed{p.key, why, s})
}

// unanswered gives up if the next try would be too late. A path that is known stays in use.
func (p *path) unanswered(why Reason) {
	next := p.of.step.now
	if p.req.state == requestResting {
		next = p.req.at
	}
	if next.Before(p.req.until) {
		return
	}
	p.of.requests.cancel(&p.req)
	p.of.becomeOther(p)
	if p.known {
		p.of.step.emit(PathFailed{Key: p.key, Reason: why})
		return
	}
	p.fail(why, 0)
}

// fresh reports whether the path needs no new query.
func (p *path) fresh() bool {
	return p.known && p.epoch == p.of.epoch && p.of.step.now.Sub(p.got) < pathAge
}
