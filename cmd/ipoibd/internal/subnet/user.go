package subnet

import (
	"maps"
	"slices"

	"ipoibd/hca"
	"ipoibd/neigh/sa"
)

// User is the use of a port by one interface. Any goroutine may call its methods, which do not block.
type User struct {
	port  *Port
	owner sa.Owner
	pkey  hca.PKey
	ready func()

	groups map[hca.GID]bool // that it has asked for; guarded by Port.mu, as what follows
	// The latest result about each group and path since the last Take. What the users of the partition have asked for
	// since then bounds them.
	joins map[hca.GID]sa.Action
	paths map[sa.PathKey]sa.Action
}

// Use adds an interface of the partition of a P_Key. ready is called when there are results; it must not block, nor call
// a method of the port or the user.
func (p *Port) Use(pkey hca.PKey, ready func()) *User {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextOwner++
	u := &User{
		port: p, owner: p.nextOwner, pkey: pkey | hca.PKeyMembership, ready: ready,
		groups: map[hca.GID]bool{}, joins: map[hca.GID]sa.Action{}, paths: map[sa.PathKey]sa.Action{},
	}
	p.users = append(p.users, u)
	return u
}

// Join asks for a membership in a group, until Leave. Its results are [sa.Joined] and [sa.JoinFailed].
func (u *User) Join(mgid hca.GID, sendOnly bool) {
	u.port.mu.Lock()
	u.groups[mgid] = true
	u.port.mu.Unlock()
	u.port.put(sa.Join{Owner: u.owner, MGID: mgid, SendOnly: sendOnly})
}

// Leave ends the membership in a group.
func (u *User) Leave(mgid hca.GID) {
	u.port.mu.Lock()
	delete(u.groups, mgid)
	delete(u.joins, mgid)
	u.port.mu.Unlock()
	u.port.put(sa.Leave{Owner: u.owner, MGID: mgid})
}

// FindPath asks for the path to a port. Its results are [sa.PathFound] and [sa.PathFailed]. With again, an answer from
// before does not count.
func (u *User) FindPath(dgid hca.GID, class uint8, again bool) {
	key := sa.PathKey{DGID: dgid, PKey: u.pkey, Class: class}
	if again {
		u.port.put(sa.RefreshPath{Key: key})
		return
	}
	u.port.put(sa.WantPath{Key: key})
}

// Take returns the results since the last call.
func (u *User) Take() []sa.Action {
	u.port.mu.Lock()
	defer u.port.mu.Unlock()
	out := slices.AppendSeq(slices.Collect(maps.Values(u.joins)), maps.Values(u.paths))
	clear(u.joins)
	clear(u.paths)
	return out
}

// Trouble returns why no request can be sent, or nil.
func (u *User) Trouble() error {
	u.port.mu.Lock()
	defer u.port.mu.Unlock()
	return u.port.trouble
}

// Close leaves the groups of the interface. ready is not called after Close has returned.
func (u *User) Close() {
	p := u.port
	p.mu.Lock()
	p.users = slices.DeleteFunc(p.users, func(v *User) bool { return v == u })
	var evs []sa.Event
	for mgid := range u.groups {
		evs = append(evs, sa.Leave{Owner: u.owner, MGID: mgid})
	}
	p.mu.Unlock()
	p.put(evs...)
}

// deliver keeps a result for its user, or for all users of its partition.
func (p *Port) deliver(a sa.Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.users {
		if u.keep(a) {
			u.ready()
		}
	}
}

// keep keeps a result, and reports whether it is one for this user.
func (u *User) keep(a sa.Action) bool {
	join := func(owner sa.Owner, mgid hca.GID) bool {
		if owner != u.owner || !u.groups[mgid] {
			return false
		}
		u.joins[mgid] = a
		return true
	}
	path := func(key sa.PathKey) bool {
		if key.PKey|hca.PKeyMembership != u.pkey {
			return false
		}
		u.paths[key] = a
		return true
	}
	switch a := a.(type) {
	case sa.Joined:
		return join(a.Owner, a.MGID)
	case sa.JoinFailed:
		return join(a.Owner, a.MGID)
	case sa.PathFound:
		return path(a.Key)
	case sa.PathFailed:
		return path(a.Key)
	}
	return false
}
