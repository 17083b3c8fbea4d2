package soft

import (
	"maps"
	"net/netip"
	"slices"

	"ipoibd/hca"
)

// routes is an immutable snapshot of the QPs by number and by group.
type routes struct {
	qps      map[hca.QPN]*QP
	groups   map[netip.Addr][]*QP
	attached []*QP // to any group, each once
}

// withQP returns routes that also contain q.
func (r *routes) withQP(q *QP) *routes {
	next := *r
	next.qps = map[hca.QPN]*QP{q.num: q}
	maps.Copy(next.qps, r.qps)
	return &next
}

// withoutQP returns routes without q, which must not be attached to a group.
func (r *routes) withoutQP(q *QP) *routes {
	next := *r
	next.qps = maps.Clone(r.qps)
	delete(next.qps, q.num)
	return &next
}

// withMembers returns routes in which a group has these members.
func (r *routes) withMembers(group netip.Addr, members []*QP) *routes {
	next := *r
	next.groups = make(map[netip.Addr][]*QP, len(r.groups)+1)
	maps.Copy(next.groups, r.groups)
	next.groups[group] = members
	if len(members) == 0 {
		delete(next.groups, group)
	}
	next.attached = nil
	for _, qps := range next.groups {
		for _, q := range qps {
			if !slices.Contains(next.attached, q) {
				next.attached = append(next.attached, q)
			}
		}
	}
	return &next
}

// isMember reports whether q is in the group.
func (r *routes) isMember(group netip.Addr, q *QP) bool {
	return slices.Contains(r.groups[group], q)
}
