// Package dotnet is what tests share of .NET: a program whose threads stop where .NET itself has told of their stacks, and how
// programs in one file, which have a .NET of their own, are made to run it.
package dotnet
