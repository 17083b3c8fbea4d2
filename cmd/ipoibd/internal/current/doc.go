// Package current has the configuration that is in effect, and changes it: by a reload of the configuration file, and
// by requests to add and remove interfaces at run time. Package fleet carries the changes out.
//
// Changes are serialized by a lock. A stop of the daemon ends a change early, and keeps that lock ([Current.Hold]); a
// hand-over to another process takes it too ([Current.TryHold]).
package current
