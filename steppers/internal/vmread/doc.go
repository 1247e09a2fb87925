// Package vmread is how the steppers of virtual machines and interpreters read what those keep in
// memory: as it was at the moment of a capture or as it is now ([Memory]), no more of it than a
// process that leads in circles may cost ([Pace]), and found again only when mappings have changed
// ([Found]).
//
// What any one runtime has where is not known here, but in the packages of their steppers.
//
// A Memory belongs to one goroutine at a time, as the Walker that it is made for.
package vmread
