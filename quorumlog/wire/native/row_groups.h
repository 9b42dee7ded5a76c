/* Assign rows to the partitions of their topics, and order them by partition.  Standard C only: the extension module and
 * the fuzz harness both include this file.
 *
 * A group is one partition of one topic; the groups of a topic are consecutive numbers. */
#ifndef QUORUMLOG_ROW_GROUPS_H
#define QUORUMLOG_ROW_GROUPS_H

#include "murmur2.h"
#include "record_rows.h"

struct groups_topics {
    const int64_t *first_group, *partition_count;
    const int64_t *sticky; /* the partition of rows without key and partition */
    int64_t count;
};

struct groups_rows {
    int64_t count;
    const int32_t *topics;     /* index of each row's topic; NULL: 0 for all rows */
    const int32_t *partitions; /* NULL: the column is missing */
    const uint8_t *partition_valid;
    struct rows_bytes key;
};

/* Return whether each topic has a partition, and all groups are below `group_count`. */
static inline int groups_topics_fit(const struct groups_topics *topics, int64_t group_count)
{
    int64_t topic, partitions;
    for (topic = 0; topic < topics->count; topic++) {
        partitions = topics->partition_count[topic];
        if (partitions < 1 || partitions > group_count || topics->first_group[topic] < 0 ||
            topics->first_group[topic] > group_count - partitions || topics->sticky[topic] < 0 ||
            topics->sticky[topic] >= partitions)
            return 0;
    }
    return 1;
}

/* Return whether each row has a known topic, and its key is within the column's data. */
static inline int groups_rows_fit(const struct groups_rows *rows, int64_t topic_count)
{
    struct rows_value key;
    int64_t row;

    if (!rows->topics && rows->count && !topic_count)
        return 0;
    if (!rows->topics && !rows->key.offsets)
        return 1;
    for (row = 0; row < rows->count; row++) {
        if (rows->topics && (rows->topics[row] < 0 || rows->topics[row] >= topic_count))
            return 0;
        if (!rows_find(&rows->key, row, &key))
            return 0;
    }
    return 1;
}

/* Choose a partition like Kafka's default partitioner: the row's own partition, else one by the hash of its key, else
 * the sticky one.  Return a negative number if the topic does not have the row's own partition. */
static inline int64_t groups_partition(const struct groups_rows *rows, int64_t row, int64_t partition_count,
                                       int64_t sticky)
{
    struct rows_value key;
    int32_t partition;

    if (rows->partitions && rows_is_valid(rows->partition_valid, row)) {
        partition = rows->partitions[row];
        return partition < partition_count ? partition : -1;
    }
    rows_find(&rows->key, row, &key);
    if (key.size < 0)
        return sticky;
    return (murmur2_hash(key.data, (size_t)key.size) & 0x7FFFFFFF) % partition_count;
}

/* Write the group of each row, and add the rows of each group to its size.  Return -1, or the first row that names a
 * partition that its topic does not have.  `groups_topics_fit` and `groups_rows_fit` hold. */
static inline int64_t groups_assign(const struct groups_rows *rows, const struct groups_topics *topics,
                                    int32_t *groups, int64_t *group_sizes)
{
    int64_t row, topic, partition, group;

    for (row = 0; row < rows->count; row++) {
        topic = rows->topics ? rows->topics[row] : 0;
        partition = groups_partition(rows, row, topics->partition_count[topic], topics->sticky[topic]);
        if (partition < 0)
            return row;
        group = topics->first_group[topic] + partition;
        groups[row] = (int32_t)group;
        group_sizes[group]++;
    }
    return -1;
}

/* Write the rows by group, and within a group in their own order (a counting sort).  next: the place at which each
 * group begins; the call advances it.  Return 0 if a group or a place is outside its array. */
static inline int groups_order(const int32_t *groups, int64_t row_count, int64_t *next, int64_t group_count,
                               int64_t *order)
{
    int64_t row, group;

    for (row = 0; row < row_count; row++) {
        group = groups[row];
        if (group < 0 || group >= group_count || next[group] < 0 || next[group] >= row_count)
            return 0;
        order[next[group]++] = row;
    }
    return 1;
}

#endif
