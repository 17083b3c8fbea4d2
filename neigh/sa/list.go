package sa

import (
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// GroupInfo describes a membership to an operator.
type GroupInfo struct {
	MGID      hca.GID
	State     string // waiting, joining, joined or leaving
	Owners    []Owner
	JoinState mad.JoinState // what the SA may have stored
	Group     Group         // while joined
	Reason    Reason        // why it is not joined
	Status    mad.Status    // of the answer, if the SA refused
}

// Groups returns the memberships in the order of their first join. It allocates.
func (c *Client) Groups() []GroupInfo {
	out := make([]GroupInfo, 0, len(c.groups.list))
	for _, g := range c.groups.list {
		info := GroupInfo{
			MGID: g.mgid, State: g.state.String(), JoinState: g.held, Reason: g.why.reason, Status: g.why.status,
		}
		if g.state == groupJoined {
			info.Group = g.group
		}
		for _, o := range g.owners {
			info.Owners = append(info.Owners, o.id)
		}
		out = append(out, info)
	}
	return out
}

// PathInfo describes a path of the cache to an operator.
type PathInfo struct {
	Key   PathKey
	Path  Path
	Got   time.Time // when the SA answered
	Stale bool      // it is asked for again when it is next wanted
}

// Paths returns the paths that are known, in no particular order. It allocates.
func (c *Client) Paths() []PathInfo {
	out := make([]PathInfo, 0, len(c.paths.byKey))
	for _, p := range c.paths.byKey {
		if p.known {
			out = append(out, PathInfo{Key: p.key, Path: p.path, Got: p.got, Stale: !p.fresh()})
		}
	}
	return out
}
